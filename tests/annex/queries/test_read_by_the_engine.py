"""Files that the engine reads itself give what a read of ours gives; where they would not, we read them first."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import errors

from .test_types import KEPT

pytest.importorskip("duckdb")
Made = Callable[[Path], hr.Dataset]
ROWS = pa.table({"n": [3, 1, None, 2], "text": ["ä", None, "", "x"], "f": [float("nan"), -0.0, None, 1.5]})


def _hive(place: Path, folders: dict[str, pa.Table], **options: object) -> hr.Dataset:
    for folder, table in folders.items():
        (place / folder).mkdir(parents=True)
        pq.write_table(table, place / folder / "a.parquet", row_group_size=2)
    return hr.read_parquet(place, **options)


def _delta(table: pa.Table, again: pa.Table | None = None, **options: object) -> Made:
    def made(place: Path) -> hr.Dataset:
        deltalake = pytest.importorskip("deltalake")
        deltalake.write_deltalake(str(place), table, **options)
        deltalake.write_deltalake(
            str(place), table if again is None else again, mode="append", schema_mode="merge"
        )
        return hr.read_delta(str(place))

    return made


def _iceberg(change: Callable[[object], object] = lambda table: None, columns: pa.Table = ROWS) -> Made:
    def made(place: Path) -> hr.Dataset:
        catalog = pytest.importorskip("pyiceberg.catalog.sql")
        place.mkdir()
        about = {"uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}
        lake = catalog.SqlCatalog("default", **about)
        lake.create_namespace("db")
        table = lake.create_table("db.t", columns.schema)
        table.append(columns)
        table.append(columns)
        change(table)
        return hr.read_iceberg("db.t", catalog={"type": "sql", **about})

    return made


def _renamed(table: object) -> None:
    with table.update_schema() as update:  # type: ignore[attr-defined]
        update.rename_column("text", "words")


KEYS = pa.table(
    {
        "n": [1, 2, 3, 4],
        "day": pa.array([datetime.date(2024, 1, 1), None] * 2),
        "city": ["a=b/c", "ö x", None, "7"],
        "money": pa.array(
            [Decimal("1.50"), Decimal("99999999999999.99"), None, Decimal(0)], pa.decimal128(16, 2)
        ),
        "yes": [True, False, None, True],
    }
)
IN_DELTA = {
    name: column
    for name, column in KEPT.items()
    if name not in ("uint64", "uint16", "time", "ms", "ns", "zoned", "vector", "tensor")
}

DIRECT: dict[str, Made] = {
    "folders": lambda place: _hive(place, {"zone=1/city=Rio": ROWS, "zone=20/city=a%20b": ROWS}),
    "folders, a null": lambda place: _hive(place, {"zone=1": ROWS, "zone=__HIVE_DEFAULT_PARTITION__": ROWS}),
    "some columns": lambda place: _hive(place, {"zone=1": ROWS, "zone=2": ROWS}, columns=["zone", "text"]),
    "types as they are": lambda place: _hive(place, {"a": ROWS, "b": ROWS}, schema=ROWS.schema),
    "Delta": _delta(pa.table({"n": [1, 2, 3], **IN_DELTA})),
    "Delta in partitions": _delta(KEYS, partition_by=["city", "day", "money", "yes"]),
    "Iceberg": _iceberg(),
    "Iceberg with deleted rows": _iceberg(lambda table: table.delete("n = 1")),
}  # fmt: skip
OURS: dict[str, Made] = {
    "files that differ": lambda place: _hive(place, {"a": ROWS, "b": ROWS.append_column("more", ROWS["n"])}),
    "another type": lambda place: _hive(
        place, {"a": ROWS}, schema=ROWS.schema.set(0, pa.field("n", pa.float64()))
    ),
    "with paths": lambda place: _hive(place, {"a": ROWS}, include_paths=True),
    "names of the engine's": lambda place: _hive(place, {"a=1": pa.table({"n": [1], "file_index": [7]})}),
    "Delta that grew": _delta(ROWS, ROWS.append_column("more", ROWS["n"])),
    "Iceberg with another name": _iceberg(_renamed),
    "Iceberg, nested": _iceberg(columns=pa.table({"n": [1], "s": [{"a": 1}]})),
}


@pytest.mark.parametrize("name", [*DIRECT, *OURS])
@pytest.mark.filterwarnings("ignore:Delete operation did not match")
def test_the_rows_are_those_that_we_read(name: str, tmp_path: Path) -> None:
    given = {**DIRECT, **OURS}[name](tmp_path / "table").with_options(engine="inline", progress=False)
    found = hr.sql("SELECT * FROM t", t=given)
    direct = "duckdb reads the files" in found.explain()
    assert direct == (name in DIRECT)
    ours, got = given.to_arrow(), found.with_options(engine="inline", progress=False).to_arrow()
    assert got.schema.names == ours.schema.names
    wide = hr.sql("SELECT * FROM t", t=hr.from_arrow(ours)).schema()
    assert got.schema == wide
    assert sorted(map(repr, got.to_pylist())) == sorted(map(repr, ours.cast(wide).to_pylist()))
    if "file_index" not in ours.schema.names:  # numbered, too, over files and their row groups
        order = given.random_shuffle(seed=1).to_arrow()
        assert repr(order.to_pylist()) == repr(
            hr.from_arrow(ours).random_shuffle(seed=1).to_arrow().to_pylist()
        )


@pytest.mark.parametrize("column", ["file_index", "File_Row_Number", "_row"])
def test_a_column_that_hides_numbers_of_rows_is_refused(column: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 1], column: [5, 5]}), tmp_path / "a.parquet")
    with pytest.raises(errors.ArgumentError, match=rf"has a column '{column}'.*rename_columns"):
        hr.read_parquet(tmp_path / "a.parquet").drop_duplicates("n")
