"""Every source keeps the promises of the port."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.source_ports import Source
from headrace.sources.csv.source import CsvSource
from headrace.sources.json.source import JsonSource
from headrace.sources.lines import BinarySource
from headrace.sources.memory import MemorySource
from headrace.sources.parquet.source import ParquetSource
from headrace.sources.range import RangeSource
from headrace.testing.sources import SourceContract, read_sound


def table(first: int, rows: int) -> pa.Table:
    numbers = np.arange(first, first + rows)
    return pa.table({"id": numbers, "half": numbers / 2, "name": [f"row {n}" for n in numbers]})


class TestParquet(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.sources.parquet.source.MERGE_BELOW", 1)

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
        monkeypatch.setattr("headrace.sources.parquet.files._LEAST_ROWS", 2)

    def make(self) -> Source:
        if not (self.folder / "y=1").exists():
            for year in (1, 2):
                (self.folder / f"y={year}").mkdir()
                rows = table(20 * year, 20)
                pq.write_table(rows, self.folder / f"y={year}" / "a.parquet", row_group_size=11)
        return ParquetSource(self.folder)

    def test_it_is_in_pieces(self, source: Source) -> None:
        assert len(source.splits()) == 16


class TestSmallParquetFiles(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def read_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.sources.parquet.together._SPLITS", 2)

    def make(self) -> Source:
        for number in range(6):
            if not (self.folder / f"{number}.parquet").exists():
                rows = table(5 * number, 5)
                pq.write_table(
                    rows if number != 4 else rows.select(rows.column_names[::-1]),
                    self.folder / f"{number}.parquet",
                    row_group_size=2 if number == 1 else 5,
                )
        return ParquetSource(self.folder)

    def test_they_are_read_together(self, source: Source) -> None:
        assert [split.stop for split in source.splits()] == [-3, -3]


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

    def make_bad(self) -> tuple[Source, list[int]]:
        (self.folder / "a.csv").write_text("id,name\n0,a\n1\n2,c\n3,d,e\n4,f\n")
        (self.folder / "b.csv").write_text("id,name\n5\n6,g\n")
        return CsvSource(self.folder, block_bytes=8), [1, 3, 5]


class TestCompressedCsv(SourceContract):
    folder: Path

    def make(self) -> Source:
        lines = "".join(f"{n},{n / 2},row {n}\n" for n in range(20))
        for name in ("a.csv.gz", "b.csv.gz"):
            if not (self.folder / name).exists():
                (self.folder / name).write_bytes(gzip.compress(f"id,half,name\n{lines}".encode()))
        return CsvSource(self.folder)

    def make_bad(self) -> tuple[Source, list[int]]:
        (self.folder / "a.csv.gz").write_bytes(gzip.compress(b"id,name\n0,a\n1\n2\n3,d\n"))
        return CsvSource(self.folder), [1, 2]


class TestJson(SourceContract):
    folder: Path

    def make(self) -> Source:
        lines = "".join(f'{{"id": {n}, "half": {n / 2}, "tags": ["{n}"]}}\n' for n in range(20))
        for name in ("a.jsonl", "b.jsonl"):
            if not (self.folder / name).exists():
                (self.folder / name).write_text(lines)
        return JsonSource(self.folder, block_bytes=60)

    def make_bad(self) -> tuple[Source, list[int]]:
        (self.folder / "a.jsonl").write_text('{"id": 0}\n{"id":\n{"id": 2}\n{"id": "x"}\n{"id": 4}\n')
        return JsonSource(self.folder, block_bytes=10), [1, 3]


class TestBinary(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.sources.file_source.SPLIT_FILES", 3)
        monkeypatch.setattr("headrace.sources.file_source.SPLITS", 1)

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


class Stutters(RangeSource):
    """It begins with a batch without rows."""

    def read(self, *arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in super().read(*arguments):
            yield batch.slice(0, 0)
            yield batch


def test_a_batch_without_rows_is_called_so() -> None:
    source = Stutters(20, rows_per_split=7)
    with pytest.raises(AssertionError, match="a batch without rows"):
        read_sound(source, source.splits()[0])
