"""``include_paths``, and ``filter`` and ``schema`` of ``read_parquet``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ArgumentError, SchemaMismatch, UnknownArgument, UnknownColumn
from headrace.sources.csv.source import CsvSource
from headrace.sources.parquet.source import ParquetSource
from headrace.testing import SourceContract

FILES = {"a": [1, 2, 3], "b": [4, 5]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, values in FILES.items():
        table = pa.table({"x": values, "y": [str(value) for value in values]})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=2)
        (folder / f"{name}.csv").write_text("x,y\n" + "".join(f"{v},t{v}\n" for v in values))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"x": v}) + "\n" for v in values))
    return folder


class TestParquetWithPaths(SourceContract):
    def make(self) -> ParquetSource:
        for name in ("a", "b"):
            pq.write_table(pa.table({"x": range(9)}), self.folder / f"{name}.parquet", row_group_size=3)
        return ParquetSource(str(self.folder), include_paths=True)


class TestCsvWithPaths(SourceContract):
    def make(self) -> CsvSource:
        for name in ("a", "b"):
            (self.folder / f"{name}.csv").write_text("x\n" + "1\n" * 9)
        return CsvSource(str(self.folder), include_paths=True, block_bytes=4)


@pytest.mark.parametrize(
    ("read", "suffix"), [(hr.read_parquet, "parquet"), (hr.read_csv, "csv"), (hr.read_json, "jsonl")]
)
def test_each_row_has_its_path(read: object, suffix: str, folder: Path) -> None:
    data = read(folder, include_paths=True).with_options(engine="inline")  # type: ignore[operator]
    rows = data.select_columns(["path", "x"]).take_all()
    expected = [
        {"path": str(folder / f"{name}.{suffix}"), "x": x} for name, values in FILES.items() for x in values
    ]
    assert rows == expected and data.columns()[-1] == "path"
    assert data.select_columns(["path"]).unique("path") == [str(folder / f"{n}.{suffix}") for n in "ab"]
    assert data.drop_columns(["path"]).take(1)[0].keys() >= {"x"} and data.count() == 5
    batch = data.map_batches(lambda batch: {"n": [len(set(batch["path"]))]}, batch_size=5).take_all()
    assert batch == [{"n": 2}]


def test_a_path_of_the_files_own(folder: Path) -> None:
    (folder / "c.csv").write_text("x,path\n1,2\n")
    with pytest.raises(SchemaMismatch, match="include_paths"):
        hr.read_csv(folder / "c.csv", include_paths=True).schema()


def test_rows_by_a_condition(folder: Path, tmp_path: Path) -> None:
    for condition in (pc.field("x") > 2, hr.col("x") > 2, [("x", ">", 2)], "x > 2"):
        data = hr.read_parquet(folder, filter=condition)  # type: ignore[arg-type]
        assert [row["x"] for row in data.take_all()] == [3, 4, 5]
    cut = hr.read_parquet(folder, columns=["y"], filter=pc.field("x") > 2, include_paths=True)
    assert cut.columns() == ["y", "path"] and cut.take(1) == [{"y": "3", "path": str(folder / "a.parquet")}]
    result = cut.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out")
    assert (result.ledger.read, result.rows, result.ledger.dropped[0]) == (5, 3, 2)
    assert hr.read_parquet(folder, columns=["y"], filter=pc.field("x") > 9).take_all() == []
    with pytest.raises(ArgumentError, match=r"read_parquet\(filter=5\)"):
        hr.read_parquet(folder, filter=5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="list of tuples"):
        hr.read_parquet(folder, filter=[("x", "!", 2)])
    with pytest.raises(UnknownColumn):
        hr.read_parquet(folder, columns=["y"], filter=pc.field("z") > 2).take_all()


def test_a_schema_of_ones_own(folder: Path, tmp_path: Path) -> None:
    wanted = pa.schema([("new", pa.string()), ("x", pa.float32())])
    data = hr.read_parquet(folder, schema=wanted)
    assert data.schema() == wanted and data.to_arrow().schema == wanted
    assert data.take(2) == [{"new": None, "x": 1.0}, {"new": None, "x": 2.0}]
    assert hr.read_parquet(folder, schema=wanted, columns=["x"]).columns() == ["x"]
    assert hr.read_parquet(folder, schema=pa.schema({"y": pa.int16()})).sum("y") == 15
    with pytest.raises(SchemaMismatch, match="column 'x' is struct"):
        hr.read_parquet(folder, schema=pa.schema({"x": pa.struct([("a", pa.int8())])})).schema()
    pq.write_table(pa.table({"x": [300]}), folder / "c.parquet")
    with pytest.raises(SchemaMismatch, match=r"c\.parquet.*a value does not fit"):
        hr.read_parquet(folder / "c.parquet", schema=pa.schema({"x": pa.int8()})).take_all()
    with pytest.raises(ArgumentError, match=r"pyarrow\.Schema"):
        hr.read_parquet(folder, schema={"x": "int8"})  # type: ignore[arg-type]
    (folder / "year=2024").mkdir()
    pq.write_table(pa.table({"x": [7]}), folder / "year=2024" / "d.parquet")
    partly = hr.read_parquet(folder / "year=2024", schema=pa.schema({"year": pa.int16(), "x": pa.int64()}))
    assert partly.take_all() == [{"year": 2024, "x": 7}] and partly.schema().field("year").type == pa.int16()
    with pytest.raises(SchemaMismatch, match="names of folders"):
        hr.read_parquet(folder / "year=2024", schema=pa.schema({"year": pa.list_(pa.int8())})).schema()


def test_options_of_pyarrow_csv_are_taken(tmp_path: Path) -> None:
    from pyarrow import csv

    file = tmp_path / "a.csv"
    file.write_text("skipped\n1;'x;y';-\n2;z;3,5\n")
    data = hr.read_csv(
        file,
        read_options=csv.ReadOptions(column_names=["n", "s", "f"], skip_rows=1, block_size=100),
        parse_options=csv.ParseOptions(delimiter=";", quote_char="'"),
        convert_options=csv.ConvertOptions(
            column_types={"n": pa.int8()}, null_values=["-"], decimal_point=","
        ),
    )
    assert data.take_all() == [{"n": 1, "s": "x;y", "f": None}, {"n": 2, "s": "z", "f": 3.5}]
    assert data.schema().field("n").type == pa.int8()
    nameless = hr.read_csv(file, read_options=csv.ReadOptions(autogenerate_column_names=True, skip_rows=1))
    assert nameless.columns() == ["f0"]
    with pytest.raises(UnknownArgument, match="parse_options= and delimiter= say the same"):
        hr.read_csv(file, delimiter=",", parse_options=csv.ParseOptions(delimiter=";"))
    with pytest.raises(ArgumentError, match=r"true_values=\['ja'\] of ConvertOptions"):
        hr.read_csv(file, convert_options=csv.ConvertOptions(true_values=["ja"]))
    with pytest.raises(ArgumentError, match="select_columns"):
        hr.read_csv(file, convert_options=csv.ConvertOptions(include_columns=["n"]))
    with pytest.raises(ArgumentError, match="3 is none of"):
        hr.read_csv(file, parse_options=3)


def test_the_old_name_for_rows_of_a_file(folder: Path, tmp_path: Path) -> None:
    def counts(name: str) -> list[int]:
        hr.read_parquet(folder / "*.parquet").write_parquet(tmp_path / name, **{name: 2})
        return sorted(pq.read_metadata(path).num_rows for path in (tmp_path / name).glob("*.parquet"))

    assert counts("num_rows_per_file") == counts("min_rows_per_file") == [2, 3]
    with pytest.raises(UnknownArgument, match="num_rows_per_file= and min_rows_per_file= say the same"):
        hr.range(10).write_parquet(tmp_path / "b", num_rows_per_file=5, min_rows_per_file=5)
    with pytest.raises(ArgumentError, match="min_rows_per_file='x'"):
        hr.range(10).write_parquet(tmp_path / "b", num_rows_per_file="x")
