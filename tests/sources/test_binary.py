"""Whole files as rows."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ArgumentError, InputChanged, NothingMatched, UnreadableFile
from headrace.sources.lines import BinarySource
from headrace.testing.sources import read_all


def test_files_become_rows_in_order(tmp_path: Path) -> None:
    for name, data in (("b.jpg", b"\x00\xff"), ("a.txt", b""), ("_skip", b"x"), ("c/d", b"d")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    source = BinarySource(tmp_path, include_paths=True)
    assert source.schema() == pa.schema([("bytes", pa.binary()), ("path", pa.string())])
    assert read_all(source).to_pydict() == {
        "bytes": [b"", b"\x00\xff", b"d"],
        "path": [str(tmp_path / name) for name in ("a.txt", "b.jpg", "c/d")],
    }
    assert str(source.locate(source.splits()[0], 1)) == str(tmp_path / "b.jpg")
    assert BinarySource(tmp_path).schema().names == ["bytes"]


def test_splits_hold_eight_megabytes_or_256_files_at_most(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}").write_bytes(b"")
    for number in range(200):
        with open(tmp_path / f"big{number:03}", "wb") as file:
            os.truncate(file.fileno(), 3 << 20)  # sparse: nothing is written
    splits = BinarySource(tmp_path).splits()
    assert [split.rows for split in splits] == [256, 46, *[2] * 99]
    assert [split.bytes for split in splits] == [0, *[6 << 20] * 100]


def test_a_file_of_two_gigabytes_needs_larger_offsets(tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        os.truncate(file.fileno(), 1 << 31)  # sparse: nothing is written, nothing is read here
    (tmp_path / "small").write_bytes(b"x")
    source = BinarySource(tmp_path)
    assert source.schema().field("bytes").type == pa.large_binary()
    assert len(source.splits()) == 2
    assert read_all(source, source.splits()[1:]).to_pydict() == {"bytes": [b"x"]}


def test_batches_end_early_when_they_get_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sources.file_source.BATCH_BYTES", 10)
    monkeypatch.setattr("headrace.sources.file_source.SPLITS", 1)
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"x" * 4)
    source = BinarySource(tmp_path)
    assert [batch.num_rows for batch in source.read(source.splits()[0], None, 100)] == [2, 2, 1]


def test_paths_alone_open_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    source = BinarySource(tmp_path, include_paths=True)
    splits = source.splits()
    (tmp_path / "a").unlink()
    assert read_all(source, splits, ["path"]).to_pydict() == {"path": [str(tmp_path / "a")]}
    with pytest.raises(InputChanged, match="is gone"):
        read_all(source, splits, ["bytes"])


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched, match="it is empty"):
        BinarySource(tmp_path).splits()


def test_compressed_files_are_unpacked_by_name_and_content(tmp_path: Path) -> None:
    packed = gzip.compress(b"hello")
    for name, data in (("a.gz", packed), ("b.gz", b"no gzip"), ("c.bin", packed), ("d.ZST", b"")):
        (tmp_path / name).write_bytes(data)
    data = hr.read_binary_files(tmp_path)
    assert [row["bytes"] for row in data] == [b"hello", b"no gzip", packed, b""]
    plain = hr.read_binary_files(tmp_path, compression=None)
    assert [row["bytes"] for row in plain] == [packed, b"no gzip", packed, b""]
    (tmp_path / "a.gz").write_bytes(packed[:-6])
    with pytest.raises(UnreadableFile, match=r"a\.gz.*compression=None"):
        data.take_all()
    with pytest.raises(ArgumentError):
        hr.read_binary_files(tmp_path, compression="gzip")  # type: ignore[arg-type]
