"""`headrace retry-rejected`: the recorded command, for the rejected rows alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import ArgumentError

from .conftest import Said

Headrace = Callable[..., Said]


def test_the_command_is_given_again_for_the_repaired_rows(headrace: Headrace) -> None:
    words = (
        "predict",
        "fares:picky",
        "trips",
        "-o",
        "out",
        "-i",
        "id,km",
        "--on-error",
        "reject",
        "--incremental",
    )
    assert headrace(*words).code == 3
    assert headrace("rejected", "out", "--to", "rows.csv").code == 0
    text = Path("rows.csv").read_text()
    lines = [line.split(",") for line in text.splitlines()]
    at = lines[0].index("id")
    for line in lines[1:4]:  # of four
        line[at] = str(int(line[at]) + 1)
    Path("rows.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    shown = headrace("retry-rejected", "out", "--fix", "rows.csv", "--dry-run", "--json").json
    assert "--incremental" not in shown["argv"] and shown["argv"][-2:] == ["--on-change", "refuse"]
    for _ in range(2):
        said = headrace("retry-rejected", "out", "--fix", "rows.csv", "--json")
        assert said.code == 3 and said.json["rows"] == {
            "read": 400,
            "written": 399,
            "rejected": 1,
            "nulled": 0,
        }
    assert hr.read_parquet("out").select_columns(["id"]).to_arrow()["id"].to_pylist()[6:9] == [6, 8, 8]
    assert [row["id"] for row in hr.read_rejected("out").take_all()] == [307]
    assert headrace("verify", "out").code == 0
    assert headrace(*words).code == 3  # the nightly line goes on
    assert (
        "no such" in (said := headrace("retry-rejected", "out", "--fix", "none.csv")).err.lower()
        and said.code == 2
    )


def test_an_output_of_a_program(headrace: Headrace) -> None:
    hr.range(3).with_options(engine="inline", progress=False).write_parquet("out")
    said = headrace("retry-rejected", "out")
    assert said.code == 2 and "written by a program, not by a command" in said.err


def test_formats_that_are_not_read_back(tmp_path: Path) -> None:
    data = hr.range(3).with_options(engine="inline", progress=False, refresh="rejected")
    with pytest.raises(ArgumentError, match="cannot be read back as they were written"):
        data.write_tfrecords(str(tmp_path / "records"))
