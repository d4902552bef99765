"""`headrace demo` has something to show wherever Headrace is installed; and mistakes on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.human import plural

Headrace = Callable[..., Any]


def test_a_demo_runs_and_is_recognised(place: Path, headrace: Headrace) -> None:
    said = headrace("demo", "shown", "--rows", "20000", "--json")
    assert (said.code, said.json["command"], said.json["status"]) == (0, "demo", "done with rejects")
    rows = said.json["rows"]
    assert (rows["read"], rows["written"], rows["rejected"]) == (20_000, 19_999, 1)
    assert 0.5 < said.json["metrics"]["error"] < 1.0
    assert "$ headrace predict fare:Fare trips/ -o fares/" in said.err
    assert hr.read_rejected(str(place / "shown" / "fares")).take(1)[0]["km"] == -1.0
    again = headrace("demo", "shown")
    assert again.code == 0 and re.search(r"^ +id +km +hour +paid +fare$", again.out.splitlines()[0])
    assert "headrace status shown/fares" in again.out


def test_a_demo_leaves_other_folders_alone(place: Path, headrace: Headrace) -> None:
    before = sorted(place.rglob("*"))
    said = headrace("demo", "trips")
    assert said.code == 2 and "trips holds something else already" in said.err
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("predict fares:Fare trips -o out --inputs id km", "--inputs id,km."),
        ("predict fares:Fare trips -o out --keep id city", "--keep id,city."),
        ("predict fars.onnx trips -o out", "Did you mean 'fares.py'?"),
        ("run trips.csv -o out", "trips.csv is not a Python script"),
        ("run jb.py -o out", "Did you mean 'job.py'?"),
        ("status trps", "Did you mean 'trips'?"),
        ("predict fares:Fare empty.csv -o out -i km", "but there are no columns."),
    ],
)
def test_mistakes_that_did_nothing_exit_with_2(
    place: Path, headrace: Headrace, words: str, said: str
) -> None:
    (place / "job.py").write_text("")
    (place / "trips.csv").write_text("id,km\n1,2\n")
    (place / "empty.csv").write_text("")
    found = headrace(*words.split())
    assert (found.code, said in found.err) == (2, True), found.err
    assert not (place / "out").exists()


def test_summaries_speak_in_flags(place: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.observers import summary

    monkeypatch.setenv("HEADRACE_PROGRESS", "1")
    monkeypatch.setattr(summary, "batch_lines", lambda batches: ["set batch_size=, or on_error='null'"])
    said = headrace("predict", "fares:Fare", "trips", "-o", "out", "-i", "km")
    assert said.code == 0 and "set --batch-size, or --on-error null" in said.err
    assert f"{plural(400, 'row')} in, 400 out in " in said.err


def test_rows_that_all_fail_are_all_rejected(place: Path, headrace: Headrace) -> None:
    """A function that fails without rows, too, used to end the run after its last row with half a sentence."""
    (place / "never.py").write_text("def works(batch):\n    raise ValueError('never')\n")
    said = headrace("predict", "never:works", "trips", "-o", "out", "--on-error", "reject", "--json")
    assert (said.code, said.json["rows"]["rejected"]) == (3, 400), said.err
