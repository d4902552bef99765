"""What earlier versions have written can be opened, verified, completed, and takes in what is new."""

from __future__ import annotations

import functools
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.door import annex
from headrace.output.places import lease
from stores.conftest import _proxy, bucket, port, proxy, raw  # noqa: F401 - fixtures of the exhibits in a store

from .make import BUCKET, EXHIBITS, MUSEUM, arrive, locked, put, slug, unpack


@functools.cache
def names_in(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        folders = {member.name.split("/")[0] for member in packed}
    return {name for name in EXHIBITS if slug(name) in folders}


SHOWN = [
    pytest.param(archive, name, id=f"{archive.name.removesuffix('.tar.xz')}: {name}")
    for archive in sorted(MUSEUM.glob("*.tar.xz"))
    for name in EXHIBITS
    if name in names_in(archive)
]


@pytest.fixture
def place(
    archive: Path, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """An exhibit where it was made, which one process has at a time."""
    if "delta" in name or "table" in name:
        pytest.importorskip("deltalake")
    with locked(name):
        found = unpack(archive, name)
        if EXHIBITS[name].in_store:
            request.getfixturevalue("bucket")
            put(request.getfixturevalue("raw"), found)
            monkeypatch.setattr(lease, "SILENCE", 0.01)  # its driver was of another machine, perhaps
            monkeypatch.setattr(lease, "BEAT", 0.01)
        yield found
        shutil.rmtree(found)


@pytest.mark.parametrize(("archive", "name"), SHOWN)
def test_an_output_of_an_earlier_version(archive: Path, name: str, place: Path) -> None:
    exhibit = EXHIBITS[name]
    about = json.loads((place / "about.json").read_text())
    assert exhibit.found(place) == [tuple(row) for row in about["rows"]]
    assert hr.verify(exhibit.output(place)).state == about["state"]
    _check_runs(exhibit.output(place), BUCKET if exhibit.in_store else str(place))

    done = _live(name, place)
    assert done.run == about["run"] and done.resumed
    _check(name, place, done, about["files"])

    arrive(place, about["files"])
    further: dict[str, Any] = {"incremental": True}
    if exhibit.lives[-1].options.get("mode") == "overwrite":
        further["mode"] = "resume"
    more = _live(name, place, **further)
    assert more.run == done.run
    _check(name, place, more, about["files"] + 1)


def _check_runs(output: str, above: str) -> None:
    """What is listed below a place, and as the latest run of an output, is what ``headrace status`` says of it."""
    follow = annex("report.follow")
    if follow is None:
        return
    status = follow.Follower(output).poll().data()
    told = [status["status"], status["rows_written"], status["number"]]
    (row,) = (each for each in hr.runs(above) if each.output == output)
    assert [row.status, row.rows, row.number] == told
    latest, *earlier = hr.runs(output)
    assert [latest.status, latest.number] == [row.status, row.number]
    assert [each.number for each in earlier if each.run[:8] == latest.run[:8]] == [
        *range(latest.number - 1, 0, -1)
    ]


def _live(name: str, place: Path, **instead: Any) -> hr.Result:
    """Run the job of the last driver again."""
    return EXHIBITS[name].live(place, EXHIBITS[name].lives[-1], **instead)


def _check(name: str, place: Path, result: hr.Result, files: int) -> None:
    expected = EXHIBITS[name].expected(files)
    assert result.rows == len(expected)
    assert EXHIBITS[name].found(place) == expected
    assert hr.verify(EXHIBITS[name].output(place)).good


def test_they_are_small() -> None:
    assert SHOWN and sum(archive.stat().st_size for archive in MUSEUM.glob("*.tar.xz")) < 300_000
