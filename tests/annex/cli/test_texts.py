"""What command lines say in text: manifests, formats, metrics; and what --json says when things go wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.annex.cli import texts
from headrace.annex.cli.answer import UsageMistake
from headrace.annex.cli.flags import WRITTEN, Output
from headrace.readers import by_name

from .test_predict import rows_of

Headrace = Callable[..., Any]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "# two of them\ntrips/0.parquet\n\n  trips/1.parquet\n"),
        ("list.json", '["trips/0.parquet", "trips/1.parquet"]'),
        ("list.manifest", '[{"prefix": "trips/"}, "0.parquet", {"path": "1.parquet"}]'),
        ("list.jsonl", '{"path": "trips/0.parquet"}\n\n{"uri": "trips/1.parquet", "rows": 100}\n'),
        ("list.csv", 'rows,Path\n100,trips/0.parquet\n100,"trips/1.parquet"\n'),
        ("plain.csv", "trips/0.parquet\ntrips/1.parquet\n"),
        ("mark.txt", "\ufefftrips/0.parquet\ntrips/1.parquet\n"),
    ],
)
def test_manifests(
    place: Path, headrace: Headrace, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / name).write_text(text)
    expected = [str(place / "trips" / f"{i}.parquet") for i in (0, 1)]
    monkeypatch.chdir("/")  # paths are relative to the manifest
    assert texts.paths_in(place / name) == expected
    monkeypatch.chdir(place)
    assert headrace("predict", "fares:Fare", "--manifest", name, "-i", "km", "-o", "out").code == 0
    assert len(rows_of(place / "out")) == 200


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "lists no input"),
        ("[" * 100_000, "nests too deep"),
        ("[1]", "names no file"),
        ("[", "is no JSON"),
        ('{"path": 1}', "names no file"),
    ],
)
def test_manifests_that_make_no_sense(place: Path, text: str, told: str) -> None:
    (place / "list").write_text(text)
    with pytest.raises(UsageMistake, match=told):
        texts.paths_in(place / "list")
    with pytest.raises(UsageMistake, match="No such file"):
        texts.paths_in(place / "nothing")


def test_formats_are_told_by_names(place: Path) -> None:
    assert by_name.format_of(["trips/"]) == "parquet" == by_name.format_of(["trips/*"])
    assert by_name.format_of(["json"]) == "json" and by_name.format_of(["a.tsv.zst"]) == "tsv"
    (place / "trips" / "_hidden.csv").touch()
    (place / "odd").mkdir()
    (place / "odd" / "file.xyz").touch()
    assert by_name.format_of(["trips"]) == "parquet"
    with pytest.raises(hr.errors.ArgumentError, match=r"do not show their format \('file.xyz'\)"):
        by_name.format_of(["odd"])


def test_other_formats_are_read(place: Path, headrace: Headrace) -> None:
    (place / "t.tsv").write_text("id\tkm\n1\t2.0\n")
    assert headrace("inspect", "t.tsv", "--json").json["schema"][1] == {
        "name": "km",
        "type": "double",
        "nullable": True,
    }
    (place / "semi.csv").write_text("id;km\n1;2.0\n")
    assert len(headrace("inspect", "semi.csv", "--read", "delimiter=;", "--json").json["schema"]) == 2
    said = headrace("inspect", "semi.csv", "--read", "delimeter=;")
    assert said.code == 2 and "Did you mean 'delimiter'?" in said.err
    assert headrace("inspect", "fares.py", "--format", "binary", "--json").json["rows"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("auc", "a name and a metric"),
        ("auc=AUROCC(label=y, score=s)", "Did you mean 'AUROC'?"),
        ("auc=AUROC(label=y)", "missing 1 required positional argument"),
        ("auc=AUROC(label=y, score=s, binz=3)", "binz"),
        ("auc=__import__('os').system('touch evil')", "there is no metric"),
        ("m=Mean([x for x in 'ab'])", "neither a column's name nor a plain value"),
        ("m=Mean(**{'column': 'x'})", "is not allowed here"),
        ("m=Mean(open('evil', 'w'))", "there is no metric 'open'"),
        ("m=3", "in parentheses"),
        ("m=(", "not a metric"),
    ],
)
def test_metrics_are_read_and_never_evaluated(place: Path, text: str, told: str) -> None:
    with pytest.raises(UsageMistake, match=None) as raised:
        texts.metric(text)
    assert told in str(raised.value) and not (place / "evil").exists()


def test_metrics_count(place: Path, headrace: Headrace) -> None:
    said = headrace(
        "predict", "fares:Fare", "trips", "-i", "km", "-o", "out", "--json",
        "--metric", "mean=Mean(prediction)", "--metric", "by=By(city, Count())", "--metric", "q=Quantiles(km, [0.5])",
    )  # fmt: skip
    assert said.json["metrics"]["by"] == {"Bonn": 133, "Oslo": 134, "Rome": 133}
    assert said.json["metrics"]["mean"] == 3 + 2.5 * 0.5 * 399 / 2


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["predict", "fares:Fare", "trips", "-o", "out", "--nonsense"], 2, "NoSuchOption"),
        (["predict", "fares:Fare", "trip", "-o", "out"], 2, "NothingMatched"),
        (["predict", "fares:picky", "trips", "-o", "out"], 1, "StepError"),
        (["predict", "fares:Fare", "trips", "-o", "trips"], 2, "ForeignOutput"),
        (["predict", "fare.onnx", "trips", "-o", "out"], 2, "UsageMistake"),
        (["predict", "trips/0.parquet", "trips", "-o", "out"], 2, "ModelUnreadable"),
        (["verify", "nowhere"], 2, "NothingMatched"),
        (["nonsense"], 2, "UsageError"),
    ],
)
def test_failures_are_one_object_too(headrace: Headrace, words: list[str], code: int, kind: str) -> None:
    said = headrace(*words, "--json")
    found = said.json
    assert (said.code, found["exit_code"], found["status"]) == (code, code, "failed")
    assert found["error"]["type"] == kind and found["error"]["message"] and "headrace: " in said.err


FIRST = ["command", "status", "exit_code"]
RUN = [
    *FIRST, "output", "run", "rows", "completion_stats", "files", "bytes", "seconds", "resumed", "rejected_folder",
    "left_out", "report", "metrics", "headrace",
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["predict", "fares:Fare", "trips", "-i", "km", "-o", "new"], RUN),
        (["run", "job.py", "-o", "new"], RUN),
        (["resume", "out"], [*FIRST, "output", "run"]),
        (["inspect", "trips"], [*FIRST, "format", "files", "bytes", "rows", "splits", "shards", "schema"]),
        (["explain", "job.py"], [*FIRST, "text", "columns"]),
        (
            ["estimate", "job.py", "--seconds", "1"],
            [
                *FIRST, "rows", "rows_per_second", "startup_seconds", "seconds", "memory_bytes", "output_bytes",
                "cost", "tokens_in", "tokens_out", "tokens_cost", "sample", "notes",
            ],
        ),
        (
            ["verify", "out"],
            [
                *FIRST, "output", "run", "files", "rows", "bytes", "rejected", "metrics", "unchecked_metrics",
                "findings", "note",
            ],
        ),
        (["clean", "out"], [*FIRST, "output", "bytes", "items", "removed"]),
        (["predict", "fares:Fare", "trip", "-o", "new"], [*FIRST, "output", "headrace", "error"]),
        (["verify", "nowhere"], [*FIRST, "error"]),
    ],
    ids=lambda each: " ".join(each) if "--" not in each and each[0] != "command" else "",
)  # fmt: skip
def test_what_machines_rely_on(headrace: Headrace, place: Path, words: list[str], names: list[str]) -> None:
    """The names of each answer; one that is missing breaks somebody's program."""
    (place / "job.py").write_text("import headrace as hr\ndataset = hr.read_parquet('trips')\n")
    assert headrace("predict", "fares:Fare", "trips", "-i", "km", "-o", "out").code == 0
    found = headrace(*words, "--json").json
    assert list(found) == names and found["command"] == words[0]


def test_debug_shows_all_that_python_knows(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["predict", "fares:Fare", "trip", "-o", "out"]
    assert "Traceback" not in headrace(*words).err
    assert "Traceback" in headrace("--debug", *words).err
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert "Traceback" in headrace(*words).err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-O", "nonsense"], "--option nonsense: give --option name=value"),
        (["--option", "batch_size=3"], "the model has this option: --batch-size 3"),
        (["--workers", "many"], "--workers many"),
        (["--workers", "0"], "--workers 0"),
        (["--max-errors", "2.5"], "--max-errors 2.5"),
        (["--retry-on", "Timeout"], "classes of errors"),
        (["--progress", "--on-error", "rejekt"], "Did you mean 'reject'?"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--concurrency", "a-b"], "--concurrency a-b"),
        (["--output-format", "parkuet"], "Did you mean 'parquet'?"),
        (["--write", "compresion=zstd"], "Did you mean 'compression'?"),
        (["--mode", "overwrit"], "Did you mean 'overwrite'?"),
        (["--inputs", "a,,b"], "there is an empty name"),
        (["--inputs", "km", "--exclude", "id"], "either --inputs or --exclude"),
        (["--exclude", "idd"], "Did you mean 'id'?"),
        (["--exclude", "id,km,city"], "No column is left"),
        (["--manifest", "x"], "not both"),
        (["--limit", "-1"], "limit"),
        (["--memory-limit", "lots"], "--memory-limit lots"),
        (["--sha256", "00"], "is for a model file"),
        (["-M", "per_kn=3"], "Did you mean 'per_km'?"),
        (["--shard-rows", "0"], "--shard-rows 0: it takes a number above zero"),
        (["-O", "show_data=5"], "--show-data 5 is neither true nor false"),
        (["--num-gpus", "99", "--engine", "local"], "lower --num-gpus"),
    ],
)
def test_wrong_values_are_told(headrace: Headrace, place: Path, words: list[str], told: str) -> None:
    said = headrace("predict", "fares:Fare", "trips", "-o", "out", *words)
    assert said.code == 2 and told in said.err, said.err
    assert not (place / "out").exists()


@pytest.mark.parametrize("name", WRITTEN)
def test_each_format_that_is_offered_is_written(name: str, tmp_path: Path) -> None:
    data = hr.from_items([{"txt": "a"}, {"txt": "b"}] if name == "webdataset" else [{"x": 1}, {"x": 2}])
    if name == "images":
        data = hr.range_tensor(2, shape=(3, 4)).map_batches(
            lambda batch: {"x": batch["data"].astype("uint8")}
        )
    settings = ["column=x"] if name == "images" else None
    result = Output(output_format=name, write=settings).write_dataset(
        data.with_options(engine="inline", progress=False), tmp_path / "out"
    )
    assert result.rows == 2
    read = by_name.dataset_of([str(tmp_path / "out")], None, {})
    assert by_name.format_of([str(tmp_path / "out")]) == name and read.count() == 2
