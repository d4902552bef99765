"""``union`` and ``zip``: the contract of sources, resuming, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, ForeignOutput, InputChanged, OutputWriteFailed, SchemaMismatch
from headrace.sources.csv.source import CsvSource
from headrace.sources.memory import MemorySource
from headrace.sources.parquet.source import ParquetSource
from headrace.sources.range import RangeSource
from headrace.sources.union import UnionSource
from headrace.sources.zipped import ZipSource
from headrace.testing import SourceContract, failpoints

QUIET = {"engine": "inline", "progress": False}


def parquet(path: Path, group: int = 4, **columns: object) -> ParquetSource:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return ParquetSource(str(path.parent))


class TestUnion(SourceContract):
    def make(self) -> Source:
        (self.folder / "c").mkdir(exist_ok=True)
        (self.folder / "c" / "a.csv").write_text("x,b\n" + "1,z\n" * 9)
        first = parquet(self.folder / "p" / "a.parquet", x=range(9), a=[1] * 9)
        parquet(self.folder / "p" / "b.parquet", x=[1.5] * 9, a=[1] * 9)
        return UnionSource([first, CsvSource(str(self.folder / "c"), block_bytes=8)])


class TestUnionOfMemory(SourceContract):
    def make(self) -> Source:
        table = pa.table({"x": [1.5, 2.5, None]})
        return UnionSource([MemorySource(table, "m"), UnionSource([RangeSource(3), RangeSource(4)])])


class TestZip(SourceContract):
    def make(self) -> Source:
        first = parquet(self.folder / "a" / "a.parquet", 2, x=range(5))
        parquet(self.folder / "a" / "b.parquet", 2, x=range(4))
        second = parquet(self.folder / "b" / "a.parquet", 3, x=range(3), y=["t"] * 3)
        parquet(self.folder / "b" / "b.parquet", 3, x=range(6), y=["t"] * 6)
        return ZipSource([first, second])

    def test_files_are_numbered_as_in_splits(self, source: Source) -> None:
        seen = [list(source.files_of(split)) for split in source.splits()]
        assert seen == [[0, 1, 2, 3], [1, 2, 3]], "all between the first and the last that a range reads"


def test_a_union_goes_on_after_a_kill(tmp_path: Path) -> None:
    for name in ("a", "b"):
        parquet(tmp_path / name / "1.parquet", 500, id=np.arange(2000))

    def write(**given: object) -> hr.Result:  # a program that is started again
        data = hr.read_parquet(tmp_path / "a").union(hr.range(2000), hr.read_parquet(tmp_path / "b"))
        return data.with_options(shard_rows=500, **QUIET).write_parquet(tmp_path / "out", **given)  # type: ignore[arg-type]

    with failpoints({"journal.sync": "ENOSPC@4"}), pytest.raises(OutputWriteFailed):
        write()
    parquet(tmp_path / "a" / "2.parquet", id=[1])  # is left out
    with pytest.warns(UserWarning, match="1 input file is new"):
        result = write()
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == [*range(2000)] * 3
    assert (result.ledger.read, result.rows) == (6000, 6000)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b" / "1.parquet")
    with pytest.raises(InputChanged, match=r"b/1\.parquet"):
        write(on_change="continue")


@pytest.mark.parametrize("kind", ["plain", "union", "zip"])
def test_a_file_that_comes_after_planning_moves_no_other(kind: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        parquet(tmp_path / name / "1.parquet", id=np.arange(2000))
    a, b = hr.read_parquet(tmp_path / "a"), hr.read_parquet(tmp_path / "b")
    both = hr.read_parquet([tmp_path / "a", tmp_path / "b"])
    data = {"plain": both, "union": a.union(hr.range(5), b), "zip": a.zip(b)}[kind]
    run = data.with_options(shard_rows=500, **QUIET)
    with failpoints({"journal.sync": "ENOSPC@3"}), pytest.raises(OutputWriteFailed):
        run.write_parquet(tmp_path / "out")
    parquet(tmp_path / "a" / "2.parquet", id=[1])
    rows = {
        "plain": [*range(2000)] * 2,
        "union": [*range(2000), *range(5), *range(2000)],
        "zip": [*range(2000)],
    }
    run.write_parquet(tmp_path / "out")  # the same dataset, which has listed its files
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == rows[kind]
    with pytest.raises(ForeignOutput, match="inside its own input"):
        run.write_parquet(tmp_path / "a" / "out")


def test_rows_come_side_by_side(tmp_path: Path) -> None:
    parquet(tmp_path / "a" / "a.parquet", 1000, x=np.arange(5000))
    parquet(tmp_path / "b" / "a.parquet", 700, x=np.arange(5000) * 2, y=[str(i) for i in range(5000)])
    data = hr.read_parquet(tmp_path / "a").zip(hr.read_parquet(tmp_path / "b"), hr.range(5000))
    assert data.columns() == ["x", "x_1", "y", "id"] and data.count() == 5000
    rows = data.with_options(shard_rows=900, engine="local", workers=2).take_all()
    assert rows == [{"x": i, "x_1": 2 * i, "y": str(i), "id": i} for i in range(5000)]
    assert data.select_columns(["x_1"]).sum("x_1") == 5000 * 4999
    assert data.filter(expr="x == 4321").select_columns(["id", "y"]).take_all() == [{"id": 4321, "y": "4321"}]
    run = data.with_options(shard_rows=900, **QUIET).map_batches(lambda batch: batch, batch_size=77)
    with failpoints({"journal.sync": "ENOSPC@3"}), pytest.raises(OutputWriteFailed):
        run.write_parquet(tmp_path / "out")
    assert run.write_parquet(tmp_path / "out").rows == 5000
    assert pq.read_table(tmp_path / "out").column("y").to_pylist() == [str(i) for i in range(5000)]


def test_a_row_that_one_side_cannot_read_is_set_aside(tmp_path: Path) -> None:
    parquet(tmp_path / "in" / "a.parquet", 10, x=np.arange(40))
    path = tmp_path / "in" / "a.parquet"
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(1).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    run = hr.range(40).zip(hr.read_parquet(tmp_path / "in")).with_options(on_error="reject", **QUIET)
    result = run.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (30, 10)
    kept = pq.read_table(tmp_path / "out")
    assert kept.column("id").to_pylist() == kept.column("x").to_pylist() == [*range(10), *range(20, 40)]


def test_what_does_not_fit_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        SchemaMismatch, match=r"union: column 'id' is int64 in 'dataset 1' but string in 'dataset 2'"
    ):
        hr.range(2).union(hr.from_items([{"id": "x"}]))
    with pytest.raises(ArgumentError, match="numbers of rows: 3, 4"):
        hr.range(3).zip(hr.range(4))
    for verb in ("union", "zip"):
        with pytest.raises(ArgumentError, match="list is not a dataset"):
            getattr(hr.range(3), verb)([1])
        with pytest.raises(ArgumentError, match="needs another dataset"):
            getattr(hr.range(3), verb)()
    assert hr.range(0).zip(hr.range(0)).take_all() == [] == hr.range(0).union(hr.range(0)).take_all()
