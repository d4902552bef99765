"""Reading Lance tables: versions, conditions, deleted rows; and what is said of tables that cannot be read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.lakes.lance.source import LanceSource
from headrace.core.source_ports import Source
from headrace.errors import (
    ArgumentError,
    MissingLibrary,
    NothingMatched,
    SourceError,
    UnknownColumn,
    UnreadableFile,
)
from headrace.testing.sources import SourceContract, read_all

lance = pytest.importorskip("lance")

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}


def rows(first: int, stop: int) -> pa.Table:
    numbers = list(range(first, stop))
    return pa.table(
        {
            "id": numbers,
            "text": [None if i % 3 == 0 else f"text {i}" for i in numbers],
            "v": pa.array([[float(i), 0.5] for i in numbers], pa.list_(pa.float32(), 2)),
        }
    )


def table(path: Path) -> str:
    """Make a table of four fragments and three versions, with a row that was deleted."""
    place = str(path / "a.lance")
    if not Path(place).exists():
        lance.write_dataset(rows(0, 20), place, max_rows_per_file=8)
        lance.dataset(place).delete("id = 9")
        lance.write_dataset(rows(20, 23), place, mode="append")
    return place


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.annex.lakes.lance.source._SPLIT_ROWS", 3)


@pytest.mark.usefixtures("short_splits")
class TestLance(SourceContract):
    folder: Path

    def make(self) -> Source:
        return LanceSource(table(self.folder))


class TestSomeRows(SourceContract):
    folder: Path

    def make(self) -> Source:
        return LanceSource(table(self.folder), columns=["v", "id"], condition="id > 6 AND text IS NOT NULL")


def test_rows_are_those_of_the_library(tmp_path: Path) -> None:
    place = table(tmp_path)
    whole = lance.dataset(place)
    data = hr.read_lance(place).with_options(**QUIET)
    assert data.to_arrow().equals(whole.to_table()) and data.count() == 22
    assert [row["id"] for row in data.take(2)] == [0, 1]
    for version in (1, 2):
        then = hr.read_lance(place, version=version).with_options(**QUIET)
        assert then.to_arrow().equals(whole.checkout_version(version).to_table())
    whole.tags.create("first", 1)
    assert hr.read_lance(place, version="first").with_options(**QUIET).count() == 20
    condition = "id > 6 AND text IS NOT NULL"
    some = hr.read_lance(place, columns=["v", "id"], filter=condition).with_options(**QUIET)
    assert some.to_arrow().equals(whole.to_table(columns=["v", "id"], filter=condition))
    assert hr.read_lance(place, filter="id < 0").with_options(**QUIET).take_all() == []
    assert read_all(LanceSource(place), columns=["text"]).equals(whole.to_table(columns=["text"]))


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NothingMatched, match=r"There is no Lance table at .*/none\."):
        hr.read_lance(tmp_path / "none").schema()
    place = table(tmp_path)
    with pytest.raises(SourceError, match=r"has no version 9; its last ones are 1, 2, 3\."):
        hr.read_lance(place, version=9).schema()
    with pytest.raises(SourceError, match=r"Lance table .*a\.lance: .*No field named idx"):
        hr.read_lance(place, filter="idx > 1").schema()
    with pytest.raises(UnknownColumn, match="Did you mean 'id'"):
        hr.read_lance(place, columns=["idx"]).schema()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"version": 1.5}, "version= is the number of a version, or a tag"),
        ({"columns": "id"}, r"write columns=\['id'\]"),
        ({"filter": hr.col("id") > 1}, r"filter= is a condition as text"),
    ]
    for options, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            hr.read_lance(place, **options)
    blob = pa.field("file", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    kept = pa.table([[1], [b"a"]], schema=pa.schema([pa.field("id", pa.int64()), blob]))
    lance.write_dataset(kept, tmp_path / "b.lance")
    with pytest.raises(SourceError, match="has blobs in column 'file': Lance returns only their positions"):
        hr.read_lance(tmp_path / "b.lance").schema()
    assert hr.read_lance(tmp_path / "b.lance", columns=["id"]).with_options(**QUIET).take_all() == [{"id": 1}]
    shutil.rmtree(tmp_path / "a.lance" / "data")
    with pytest.raises(
        UnreadableFile, match=r"Cannot read fragment 0 of the Lance table .*a\.lance, version 3: "
    ):
        hr.read_lance(place).with_options(**QUIET).take_all()
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingLibrary, match=r'pip install "\.\[lance\]"'):
        hr.read_lance(place).schema()
