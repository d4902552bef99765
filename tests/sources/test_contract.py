"""Every source keeps the promises of the port."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.core.ports import Source
from millrace.sources.binary import BinarySource
from millrace.sources.csv import CsvSource
from millrace.sources.json import JsonSource
from millrace.sources.memory import MemorySource
from millrace.sources.parquet import ParquetSource
from millrace.sources.range import RangeSource
from millrace.testing.sources import SourceContract


def table(first: int, rows: int) -> pa.Table:
    numbers = np.arange(first, first + rows)
    return pa.table({"id": numbers, "half": numbers / 2, "name": [f"row {n}" for n in numbers]})


class TestParquet(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("millrace.sources.parquet.MERGE_BELOW", 1)

    def make(self) -> Source:
        if not (self.folder / "y=1").exists():
            for year in (1, 2):
                (self.folder / f"y={year}").mkdir()
                pq.write_table(
                    table(10 * year, 10), self.folder / f"y={year}" / "a.parquet", row_group_size=4
                )
        return ParquetSource(self.folder)


class TestParquetInPieces(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("millrace.sources.parquet_files._LEAST_ROWS", 2)

    def make(self) -> Source:
        if not (self.folder / "y=1").exists():
            for year in (1, 2):
                (self.folder / f"y={year}").mkdir()
                rows = table(20 * year, 20)
                pq.write_table(rows, self.folder / f"y={year}" / "a.parquet", row_group_size=11)
        return ParquetSource(self.folder)

    def test_it_is_in_pieces(self, source: Source) -> None:
        assert len(source.splits()) == 16


class TestParquetThatNeedsCasts(SourceContract):
    folder: Path

    def make(self) -> Source:
        if not (self.folder / "a.parquet").exists():
            pq.write_table(table(0, 5), self.folder / "a.parquet")
            pq.write_table(pa.table({"half": pa.array([1, 2], pa.int8())}), self.folder / "b.parquet")
        return ParquetSource([self.folder / "a.parquet", self.folder / "b.parquet"])


class TestCsv(SourceContract):
    folder: Path

    def make(self) -> Source:
        lines = "".join(f'{n},{n / 2},"row\n{n}"\n' for n in range(20))
        for name in ("a.csv", "b.csv"):
            if not (self.folder / name).exists():
                (self.folder / name).write_text("id,half,name\n" + lines)
        return CsvSource(self.folder, block_bytes=40)


class TestCompressedCsv(SourceContract):
    folder: Path

    def make(self) -> Source:
        lines = "".join(f"{n},{n / 2},row {n}\n" for n in range(20))
        for name in ("a.csv.gz", "b.csv.gz"):
            if not (self.folder / name).exists():
                (self.folder / name).write_bytes(gzip.compress(f"id,half,name\n{lines}".encode()))
        return CsvSource(self.folder)


class TestJson(SourceContract):
    folder: Path

    def make(self) -> Source:
        lines = "".join(f'{{"id": {n}, "half": {n / 2}, "tags": ["{n}"]}}\n' for n in range(20))
        for name in ("a.jsonl", "b.jsonl"):
            if not (self.folder / name).exists():
                (self.folder / name).write_text(lines)
        return JsonSource(self.folder, block_bytes=60)


class TestBinary(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("millrace.sources.whole.SPLIT_FILES", 3)
        monkeypatch.setattr("millrace.sources.whole.SPLITS", 1)

    def make(self) -> Source:
        for n in range(8):
            if not (self.folder / f"{n}.bin").exists():
                (self.folder / f"{n}.bin").write_bytes(b"x" * (n + 1))
        return BinarySource(self.folder, include_paths=True)


class TestMemory(SourceContract):
    def make(self) -> Source:
        return MemorySource(table(0, 20), "from_arrow", rows_per_split=7)


class TestMemoryInChunks(SourceContract):
    def make(self) -> Source:
        chunks = [table(0, 3), table(3, 5), table(8, 12)]
        return MemorySource(pa.concat_tables(chunks), "from_arrow", rows_per_split=7)


class TestRange(SourceContract):
    def make(self) -> Source:
        return RangeSource(20, rows_per_split=7)
