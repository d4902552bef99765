"""`headrace predict`: rows come out, and exit codes, JSON and messages say how it went."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

Headrace = Callable[..., Any]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("part-*")) for row in pq.read_table(file).to_pylist()]


def test_every_row_gets_a_result(headrace: Headrace, place: Path) -> None:
    said = headrace(
        "predict", "fares:Fare", "trips/", "-o", "out", "--inputs", "km", "--output", "fare", "-M", "per_km=2"
    )
    assert (said.code, said.out) == (0, ""), said.err
    rows = rows_of(place / "out")
    assert [row["id"] for row in rows] == list(range(400))
    assert all(row["fare"] == 3 + row["id"] and row["city"] for row in rows)


def test_rows_that_fail_are_exit_code_3(headrace: Headrace, place: Path) -> None:
    said = headrace(
        "predict", "fares:picky", "trips/", "-o", "out", "--key", "id", "--inputs", "id,km",
        "--on-error", "reject", "--json", "--stats", "stats.json",
    )  # fmt: skip
    assert said.code == 3 == said.json["exit_code"] and said.json["status"] == "done with rejects"
    assert said.json["rows"] == {"read": 400, "written": 396, "rejected": 4, "nulled": 0}
    assert said.json["completion_stats"] == {
        "successful_count": 396,
        "failed_count": 4,
        "incomplete_count": 0,
    }
    assert sorted(rows_of(place / "out")[0]) == ["id", "prediction"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["fares:Fare", "trips/"], 2, "Missing option '--out'"),
        (["fares:Fare", "-o", "out"], 2, "There is no input"),
        (
            ["fares:Fare", "trips/", "-o", "out", "--input", "km"],
            2,
            "no option --input. Did you mean '--inputs'?",
        ),
        (["fares:Fare", "trip/", "-o", "out"], 2, "Did you mean 'trips'?"),
        (["fares:Fair", "trips/", "-o", "out"], 2, "Did you mean 'Fare'?"),
        (["fare:Fare", "trips/", "-o", "out"], 2, "Did you mean 'fares'?"),
        (["fares:Fare", "trips/", "-o", "out", "--inputs", "kms"], 2, "Did you mean 'km'?"),
        (["fares:Fare", "trips/", "-o", "out", "--engine", "lokal"], 2, "Did you mean 'local'?"),
        (["fares:Fare", "trips/", "-o", "out", "-O", "worker=3"], 2, "Did you mean 'workers'?"),
        (["fares:Fare", "trips/", "csv/", "-o", "out"], 2, "4 parquet, 4 csv"),
        (["fares:picky", "trips/", "-o", "out", "--inputs", "id,km"], 1, "raised ValueError: not this one"),
    ],
)
def test_what_goes_wrong_is_one_paragraph(
    headrace: Headrace, place: Path, words: list[str], code: int, told: str
) -> None:
    said = headrace("predict", *words)
    assert (said.code, said.out) == (code, "") and told in said.err, said.err
    assert "headrace/" not in said.err and (code == 1 or not (place / "out").exists())
    if code == 2:
        assert "Traceback" not in said.err and said.err.startswith("headrace: ")


def test_what_is_said_of_an_overwrite_that_fails_is_its_own(headrace: Headrace, place: Path) -> None:
    """The complete output that was there before, and still stands, is none of its doing."""
    words = ("predict", "fares:Fare", "trips/", "-o", "out", "--keep", "id", "--inputs", "km")
    assert headrace(*words).code == 0
    said = headrace("predict", "fares:picky", "trips/", "-o", "out", "--mode", "overwrite", "--json")
    assert (said.code, said.json["status"]) == (1, "failed")
    assert said.json.get("completion_stats", {}).get("incomplete_count") != 0
    refused = headrace("predict", "fares:picky", "trips/", "-o", "out", "--json")
    assert refused.code != 0 and "rows" not in refused.json and "run" not in refused.json
    assert headrace("verify", "out").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--write", "path=/tmp/x"), "-o"),
        (("--mode", "overwrite", "--write", "mode=resume"), "--mode"),
        (("--workers", "2", "-O", "workers=1"), "--workers"),
    ],
)
def test_nothing_is_said_twice(headrace: Headrace, place: Path, words: tuple[str, ...], said: str) -> None:
    found = headrace("predict", "fares:Fare", "trips/", "-o", "out", *words)
    assert found.code == 2 and said in found.err and "bug in Headrace" not in found.err, found.err
    assert not (place / "out").exists()


@pytest.mark.parametrize("stats", ["nowhere/stats.json", "out/stats.json", "trips"])
def test_stats_that_cannot_be_left_are_refused_before_the_run(
    headrace: Headrace, place: Path, stats: str
) -> None:
    (place / "out").mkdir()
    found = headrace("predict", "fares:Fare", "trips/", "-o", "out", "--stats", stats)
    assert found.code == 2 and "--stats" in found.err
    assert list((place / "out").iterdir()) == []


def test_an_empty_word_is_not_the_present_folder(
    headrace: Headrace, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert headrace("predict", "fares:Fare", "trips/", "-o", "out", "--inputs", "km").code == 0
    monkeypatch.chdir(place / "out")
    found = headrace("clean", "", "--all", "--yes")
    assert found.code == 2 and "arguments is empty" in found.err
    assert (place / "out" / "_SUCCESS").exists()


def test_formulas_in_csv_are_escaped_where_asked(headrace: Headrace, place: Path) -> None:
    (place / "in").mkdir()
    (place / "in" / "a.csv").write_text('km,who\n1.0,=cmd()\n-2.0,"-3"\n')
    words = (
        "predict",
        "fares:Fare",
        "in/",
        "-o",
        "out",
        "--inputs",
        "km",
        "--keep",
        "all",
        "--output-format",
        "csv",
    )
    done = headrace(*words, "--read", "column_types={'who': 'string'}", "--write", "escape_formulas=true")
    assert done.code == 0, done.err
    (part,) = (place / "out").glob("part-*.csv")
    assert (
        ""","'=cmd()",""" in part.read_text() and "-2," in part.read_text() and '"\'-3"' in part.read_text()
    )


NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.last(x)
"""


def test_weights_take_the_class_that_they_belong_to(place: Path, headrace: Headrace) -> None:
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    (place / "nets.py").write_text(NET)
    weights = {"last.weight": torch.tensor([[2.0]]), "last.bias": torch.tensor([1.0])}
    save(weights, "net.safetensors")
    bare = headrace("predict", "net.safetensors", "trips/", "-o", "bare", "-i", "km")
    assert bare.code == 2 and "--model-option architecture=module:Class" in bare.err
    argv = ["predict", "net.safetensors", "trips/", "-o", "out", "-i", "km"]
    for wrong, told in (("Net", "as module:name"), ("nets:Nut", "Did you mean 'Net'?")):
        said = headrace(*argv, "-M", f"architecture={wrong}")
        assert said.code == 2 and told in said.err
    said = headrace(*argv, "-M", "architecture=nets:Net", "--json")
    assert said.code == 0, said.err
    table = pq.read_table("out")
    assert table.column("prediction").to_pylist() == [2 * km + 1 for km in table.column("km").to_pylist()]


def test_shard_rows_that_the_source_cannot_follow_are_told(place: Path, headrace: Headrace) -> None:
    argv = ["predict", "fares:Fare", "trips/", "-i", "km", "--shard-rows"]
    assert "a file of the output has up to 100 rows" in headrace("explain", *argv[1:], "10").out
    assert "has up to" not in headrace("explain", *argv[1:], "60").out
    said = headrace(*argv, "10", "-o", "out", "--progress")
    assert said.code == 0 and "shard_rows=10 is less than the smallest part" in said.err.replace(
        "--shard-rows 10", "shard_rows=10"
    )
