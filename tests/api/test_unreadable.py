"""Inputs that are not there, or not what they seem: one paragraph with the name, and no output."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import HeadraceError, NothingMatched, SchemaMismatch, UnreadableFile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = pa.table({"id": np.arange(50_000), "x": np.arange(50_000) * 0.5})
    (tmp_path / "in").mkdir()
    for part in range(2):
        pq.write_table(table, tmp_path / "in" / f"{part}.parquet", row_group_size=10_000, compression="zstd")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 1000] = b"\xff" * 1000
    path.write_bytes(data)


def other(path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "x": [1.0]}), path)


Read = Callable[[], hr.Dataset]
PART = "in/1.parquet"

# One of each kind: tests/sources has all that can be wrong with a file.
CASES: list[tuple[Callable[[Path], Any], Read, type[HeadraceError], str]] = [
    (lambda f: None, lambda: hr.read_parquet("in/*.parq"), NothingMatched, re.escape("in/*.parq")),
    (lambda f: None, lambda: hr.read_parquet([]), HeadraceError, "path"),
    (lambda f: truncated(f / PART), lambda: hr.read_parquet("in"), UnreadableFile, r"1\.parquet"),
    (lambda f: damaged(f / PART), lambda: hr.read_parquet("in"), UnreadableFile, r"row group.*1\.parquet"),
    (lambda f: other(f / PART), lambda: hr.read_parquet("in"), SchemaMismatch, r"0\.parquet.*1\.parquet"),
    (
        lambda f: (f / "a.csv").write_text("a,b\n1,2\n3\n"),
        lambda: hr.read_csv("a.csv"),
        UnreadableFile,
        r"a\.csv",
    ),
    (
        lambda f: (f / "a.json").write_text('{"a": 1}\n{"a": '),
        lambda: hr.read_json("a.json"),
        UnreadableFile,
        r"a\.json",
    ),
    (
        lambda f: (f / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 9)[:-9]),
        lambda: hr.read_csv("a.csv.gz"),
        UnreadableFile,
        r"a\.csv\.gz",
    ),
]


@pytest.mark.parametrize(("spoil", "read", "error", "words"), CASES)
def test_what_cannot_be_read(
    folder: Path, spoil: Callable[[Path], Any], read: Read, error: type[HeadraceError], words: str
) -> None:
    spoil(folder)
    with pytest.raises(error, match=words) as caught:
        read().map_batches(lambda batch: batch).with_options(shard_rows=50_000).write_parquet("out")
    message = str(caught.value)
    assert isinstance(caught.value, HeadraceError) and "\n" not in message
    assert "bug in Headrace" not in message, message
    assert not list((folder / "out").glob("part*1*")) if (folder / "out").exists() else True


def test_a_mended_input_is_another_input(folder: Path) -> None:
    """What was written from the good file is kept or refused, never mixed up in silence."""
    whole = (folder / PART).read_bytes()
    damaged(folder / PART)
    data = hr.read_parquet("in").map_batches(lambda batch: batch).with_options(shard_rows=50_000)
    with pytest.raises(UnreadableFile):
        data.write_parquet("out")
    (folder / PART).write_bytes(whole)
    result = hr.read_parquet("in").map_batches(lambda batch: batch).write_parquet("out", on_change="continue")
    assert result.rows == 100_000
    assert sorted(hr.read_parquet("out").to_pandas()["id"]) == sorted([*range(50_000)] * 2)
