"""pyarrow, DuckDB, Polars and Daft, pointed at the output folder, read exactly its rows.

Polars refuses a bare folder that holds any file of another suffix, whatever its name, so it gets a pattern.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pytest

import headrace as hr
from headrace.errors import ArgumentError

from .data import numbers

Row = tuple[int, str, float | None]


def row_of(i: int) -> Row:
    return i, f'w{i}, "ü"\n{"x" * (i % 3)}', None if i % 7 == 0 else i / 2


WANTED = [row_of(i) for i in range(1000)]


def make(row: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(("id", "text", "half"), row_of(row["id"]), strict=True))


def daft_rows(frame: Any) -> list[Row]:
    columns = frame.select("id", "text", "half").to_pydict()
    return sorted(zip(columns["id"], columns["text"], columns["half"], strict=True))  # files in any order


def arrow_rows(table: Any) -> list[Row]:
    columns = table.select(["id", "text", "half"]).to_pydict()
    return list(zip(columns["id"], columns["text"], columns["half"], strict=True))


def daft() -> Any:
    os.environ.setdefault("DO_NOT_TRACK", "1")
    return pytest.importorskip("daft")


def csv_by_arrow(folder: str) -> Any:
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    convert = pyarrow.csv.ConvertOptions(column_types={"half": pyarrow.float64()})
    form = pyarrow.dataset.CsvFileFormat(parse_options=parse, convert_options=convert)
    return pyarrow.dataset.dataset(folder, format=form).to_table()


READERS: dict[str, tuple[str, Callable[[str], list[Row]]]] = {
    "pyarrow": ("parquet", lambda folder: arrow_rows(pyarrow.dataset.dataset(folder).to_table())),
    "pyarrow.parquet": ("parquet", lambda folder: arrow_rows(pyarrow.parquet.read_table(folder))),
    "duckdb": ("parquet", lambda folder: duckdb.sql(f"select * from '{folder}/*.parquet'").fetchall()),
    "duckdb deep": (
        "parquet",
        lambda folder: duckdb.sql(f"select * from '{folder}/**/*.parquet'").fetchall(),
    ),
    "polars": ("parquet", lambda folder: pl.read_parquet(f"{folder}/*.parquet").rows()),
    "polars scan": ("parquet", lambda folder: pl.scan_parquet(f"{folder}/*.parquet").collect().rows()),
    "daft": ("parquet", lambda folder: daft_rows(daft().read_parquet(folder))),
    "headrace": ("parquet", lambda folder: arrow_rows(hr.read_parquet(folder).to_arrow())),
    "pyarrow csv": ("csv", lambda folder: arrow_rows(csv_by_arrow(folder))),
    "duckdb csv": ("csv", lambda folder: duckdb.read_csv(f"{folder}/*.csv").fetchall()),
    "polars csv": (
        "csv",
        lambda folder: pl.read_csv(f"{folder}/*.csv", schema_overrides={"half": pl.Float64}).rows(),
    ),
    "daft csv": ("csv", lambda folder: daft_rows(daft().read_csv(folder, allow_variable_columns=False))),
    "headrace csv": ("csv", lambda folder: arrow_rows(hr.read_csv(folder).to_arrow())),
    "pyarrow json": (
        "json",
        lambda folder: arrow_rows(pyarrow.dataset.dataset(folder, format="json").to_table()),
    ),
    "duckdb json": ("json", lambda folder: duckdb.read_json(f"{folder}/*.json").fetchall()),
    "polars json": (
        "json",
        lambda folder: pl.scan_ndjson(f"{folder}/*.json").collect().select("id", "text", "half").rows(),
    ),
    "daft json": ("json", lambda folder: daft_rows(daft().read_json(folder))),
    "headrace json": ("json", lambda folder: arrow_rows(hr.read_json(folder).to_arrow())),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each format written by a run that was interrupted half way and resumed."""
    folder = tmp_path_factory.mktemp("readers")
    for name in ("parquet", "csv", "json"):
        out = folder / name
        data = numbers(1000).with_options(engine="inline", progress=False)

        def stops(row: dict[str, Any]) -> dict[str, Any]:
            if row["id"] == 650:
                raise RuntimeError("stopped")
            return make(row)

        with pytest.raises(hr.errors.StepError, match="stopped"):
            getattr(data.map(stops), f"write_{name}")(out)
        assert (out / "_headrace").is_dir() and not (out / "_SUCCESS").exists()
        assert 6 <= len(list(out.glob("part-*"))) < 10
        if name == "parquet":
            seen = pl.read_parquet(
                out / "*.parquet"
            ).rows()  # published parts are whole, and nothing else is seen
            assert seen == [row for row in WANTED if row[0] // 100 in {row[0] // 100 for row in seen}]
        result = getattr(data.map(make), f"write_{name}")(out, on_change="continue")
        assert (result.rows, result.resumed) == (1000, True)
    return {name: folder / name for name in ("parquet", "csv", "json")}


@pytest.mark.parametrize("reader", list(READERS))
def test_the_folder_holds_exactly_the_rows(outputs: dict[str, Path], reader: str) -> None:
    kind, read = READERS[reader]
    assert (outputs[kind] / "_headrace").is_dir()
    assert read(str(outputs[kind])) == WANTED


@pytest.mark.parametrize("source", ["rides.csv", None, object()], ids=["text", "none", "object"])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(ArgumentError, match=r"from_source\(.*\): it takes an instance of a subclass of"):
        hr.Dataset.from_source(source)
