"""`--require`, `headrace publish` and `headrace discard`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Said

Headrace = Callable[..., Said]

PREDICT = ("predict", "fares:Fare", "trips", "-i", "km", "-o", "out", "--metric", "mean=Mean(prediction)")


@pytest.fixture
def refused(headrace: Headrace) -> Headrace:
    said = headrace(*PREDICT, "--require", "mean>=1e9", "--require", "rows>=1")
    assert said.code == 4 and "asked: at least 1e+09" in said.err and "Met: rows is 400" in said.err
    return headrace


def test_it_is_not_published(refused: Headrace) -> None:
    assert [path.name for path in Path("out").iterdir()] == ["_headrace"]
    status = refused("status", "out", "--json")
    assert status.code == 4 and status.json["status"] == "unpublished"
    assert [each["met"] for each in status.json["required"]["figures"]] == [False, True]
    assert "and not published" in refused("status", "out").out
    verified = refused("verify", "out", "--json")
    assert verified.code == 4 and verified.json["status"] == "unpublished"
    page = Path("page.html")
    assert refused("report", "out", "--to", str(page)).code == 0
    assert "What was required" in page.read_text() and "headrace publish" in page.read_text()


def test_asked_again(refused: Headrace) -> None:
    said = refused(*PREDICT, "--require", "mean>=1e8", "--json", "--no-progress", "--stats", "stats.json")
    assert said.code == 4 and said.json["status"] == "unpublished"
    assert json.loads(Path("stats.json").read_text())["status"] == "unpublished"
    assert refused("resume", "out").code == 4
    assert refused(*PREDICT, "--require", "mean>=0").code == 0
    assert refused("verify", "out").code == 0


def test_published(refused: Headrace) -> None:
    assert refused("publish", "out").code == 2
    said = refused("publish", "out", "--because", "the fares are new", "--json")
    assert said.code == 0 and said.json["rows"]["written"] == 400
    assert "because: the fares are new" in refused("status", "out").out
    assert refused("publish", "out", "--because", "again").code == 0


def test_discarded(refused: Headrace) -> None:
    assert refused("discard", "out", "--because", "wrong fares").code == 0
    said = refused("status", "out")
    assert said.code == 1 and "discarded" in said.out and "wrong fares" in said.out
    assert refused("publish", "out", "--because", "no").code == 2
    assert refused(*PREDICT).code == 0
    assert refused("discard", "out").code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mea>=1", "Did you mean 'mean'?"),
        ("mean>1", "is no requirement"),
        ("mean>=x", "is no requirement"),
        ("mean", "is no requirement"),
    ],
)
def test_what_makes_no_sense(headrace: Headrace, text: str, words: str) -> None:
    said = headrace(*PREDICT, "--require", text)
    assert said.code == 2 and words in said.err
    assert not Path("out").exists()
