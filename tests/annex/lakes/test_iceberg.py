"""Iceberg tables: one snapshot for each run, once, whatever is killed or lost; reading one snapshot."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

import headrace as hr
from headrace.annex.lakes.iceberg.sink import IcebergTable
from headrace.annex.lakes.iceberg.source import Catalog, IcebergSource
from headrace.core.source_ports import Source
from headrace.errors import (
    ArgumentError,
    NothingMatched,
    OutputExists,
    RequirementNotMet,
    SinkError,
    SourceError,
    UnknownColumn,
)
from headrace.testing import SourceContract

from .growing import PLAIN, Iceberg, hundred, rows, typed


@pytest.fixture
def shop(tmp_path: Path) -> Iceberg:
    return Iceberg(tmp_path)


# ------------------------------------------------------------ columns


def test_types_are_those_of_the_table(shop: Iceberg) -> None:
    given = typed()
    rows(given).write_iceberg("shop.t", catalog=shop.lake)
    expected = [{k: list(v) if k == "vector" else v for k, v in row.items()} for row in given.to_pylist()]
    assert shop.table().scan().to_arrow().to_pylist() == expected
    assert hr.read_iceberg("shop.t", catalog=shop.lake).take_all() == expected
    (file,) = shop.table().inspect.files()["file_path"].to_pylist()
    numbers = {f.name: f.metadata[b"PARQUET:field_id"] for f in pq.read_schema(file)}
    assert numbers == {f.name: str(f.field_id).encode() for f in shop.table().schema().fields}
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql(f"SELECT sum(id), max(price) FROM '{file}'").fetchall() == [(3, Decimal("1.50"))]


def test_tables_that_parts_do_not_fit(shop: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    required = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("x", pa.string())])
    shop.catalog.create_namespace("shop")
    table = shop.catalog.create_table("shop.t", schema=required)
    for data, words in (
        (rows({"id": [1]}), "'id' is of type int64.*has it as int32"),
        (
            rows({"id": pa.array([1], pa.int32()), "y": [1]}),
            r"has no column 'y'; it has id, x.*update_schema",
        ),
        (rows({"x": ["a"]}), "'id' that must not be null"),
        (rows({"id": pa.array([1, None], pa.int32())}), "'id' has nulls"),
        (rows({"id": pa.array([1], pa.uint64())}), "uint64, which no Iceberg table has"),
    ):
        with pytest.raises(hr.errors.HeadraceError, match=words):
            data.write_iceberg("shop.t", catalog=shop.lake, output="wrong")
    good = rows({"id": pa.array([1, 2], pa.int32())})
    good.write_iceberg("shop.t", catalog=shop.lake)
    assert hr.read_iceberg("shop.t", catalog=shop.lake).take_all() == [
        {"id": 1, "x": None},
        {"id": 2, "x": None},
    ]
    compare = IcebergTable.compare

    def changed(self: IcebergTable, *args: Any) -> Any:
        with shop.table().update_schema() as update:
            update.rename_column("id", "key")
        return compare(self, shop.table(), *args[1:])

    monkeypatch.setattr(IcebergTable, "compare", changed)
    with pytest.raises(SinkError, match="has no column 'id'; it has key, x"):
        good.write_iceberg("shop.t", catalog=shop.lake, output="late")
    assert len(table.refresh().metadata.snapshots) == 1
    with pytest.raises(OutputExists):
        good.write_iceberg("shop.t", catalog=shop.lake, mode="error", output="e")


# ------------------------------------------------------------ reading


def test_deleted_rows_and_changed_columns(shop: Iceberg) -> None:
    shop.add(pa.table({"id": pa.array([1, 2, 3], pa.int32()), "word": ["a", "b", "c"]}))
    with shop.table().update_schema() as update:
        update.rename_column("word", "text")
        update.update_column("id", LongType())
    with shop.table().update_schema() as update:
        update.add_column("word", LongType())
    shop.table().append(pa.table({"id": [4], "text": ["d"], "word": [40]}))
    shop.table().delete("id = 2")
    found = hr.read_iceberg("shop.t", catalog=shop.lake).with_options(**PLAIN)
    assert sorted(map(str, found.take_all())) == sorted(map(str, shop.table().scan().to_arrow().to_pylist()))
    assert {"id": 4, "text": "d", "word": 40} in found.take_all() and found.count() == 3
    some = hr.read_iceberg("shop.t", catalog=shop.lake, row_filter="id >= 3", selected_fields=["word", "id"])
    assert sorted(some.take_all(), key=str) == [{"word": 40, "id": 4}, {"word": None, "id": 3}]
    first = shop.table().metadata.snapshots[0]
    assert hr.read_iceberg("shop.t", catalog=shop.lake, snapshot_id=first.snapshot_id).count() == 3
    when = dt.datetime.fromtimestamp(first.timestamp_ms / 1000, dt.UTC)
    assert hr.read_iceberg("shop.t", catalog=shop.lake, as_of=when).schema().names == ["id", "word"]


def test_rows_are_published_to_no_table_of_another_catalogue(shop: Iceberg, tmp_path: Path) -> None:
    with pytest.raises(RequirementNotMet):
        hundred().require(rows=hr.at_least(101)).write_iceberg("shop.t", catalog=shop.lake)
    out = tmp_path / "shop/t/data/headrace-output"
    other = {**shop.lake, "uri": f"sqlite:///{tmp_path}/other.db", "warehouse": f"{tmp_path}/other"}
    with pytest.raises(ArgumentError, match=r"of the given catalogue is in .*not around this output"):
        hr.publish(out, because="why not", catalog=other)
    assert hr.publish(out, because="why not", catalog=shop.lake).rows == 100
    assert hr.verify(out, catalog=shop.lake).good and "not around" in hr.verify(out, catalog=other).note
    assert len(shop.table().scan().to_arrow()) == 100


def test_columns_that_changed_since_the_last_snapshot(shop: Iceberg, tmp_path: Path) -> None:
    shop.add(pa.table({"id": [1, 2], "word": ["a", "b"], "n": [5, 6]}))
    stop = [True]

    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        if stop:
            raise ValueError("not now")
        return batch

    def data() -> hr.Dataset:
        return hr.read_iceberg("shop.t", catalog=shop.lake).with_options(shard_rows=1, **PLAIN)

    def run() -> hr.Result:
        first = data().map_batches(fails, version="1")
        return first.write_parquet(tmp_path / "out")

    with pytest.raises(hr.errors.StepError):
        run()
    data().write_parquet(tmp_path / "done")
    with shop.table().update_schema() as update:
        update.rename_column("word", "text")
        update.delete_column("n")
    with shop.table().update_schema() as update:
        update.add_column("n", LongType())
    now = [{"id": 1, "text": "a", "n": None}, {"id": 2, "text": "b", "n": None}]
    assert shop.table().scan().to_arrow().to_pylist() == now == data().take_all()
    some = hr.read_iceberg(
        "shop.t", catalog=shop.lake, row_filter="text == 'b'", selected_fields=["n", "text"]
    )
    assert some.take_all() == [{"n": None, "text": "b"}]
    then = shop.table().metadata.snapshots[-1].snapshot_id
    past = hr.read_iceberg("shop.t", catalog=shop.lake, snapshot_id=then, row_filter="n == 6")
    assert past.take_all() == [{"id": 2, "word": "b", "n": 6}]
    with pytest.warns(UserWarning, match="other columns now"):
        assert data().write_parquet(tmp_path / "done").resumed
    stop.clear()
    with pytest.warns(UserWarning, match="other columns now"):
        run()
    assert hr.read_parquet(tmp_path / "out").schema().names == ["id", "word", "n"]


def test_wrong_input(shop: Iceberg) -> None:
    shop.add(pa.table({"id": [1]}))

    def read(**how: Any) -> int:
        return hr.read_iceberg(how.pop("table", "shop.t"), **{"catalog": shop.lake, **how}).count()

    for how, error, words in (
        ({"table": "shop.nope"}, NothingMatched, "no Iceberg table shop.nope"),
        ({"table": "t"}, ArgumentError, "with its namespace"),
        ({"catalog": "nowhere"}, SourceError, "Cannot open the catalogue nowhere"),
        ({"catalog": 3}, ArgumentError, "catalog= is the name"),
        ({"catalog": {"uri": "postgresql://ada:secret@db/x"}}, ArgumentError, "credentials come from"),
        ({"snapshot_id": 3}, SourceError, "has no snapshot 3"),
        ({"snapshot_id": 3, "as_of": "2026-01-01"}, ArgumentError, "give one of them"),
        ({"as_of": "2020-01-01"}, SourceError, "first one is later"),
        ({"row_filter": "idd > 1"}, SourceError, "idd"),
        ({"selected_fields": ["idd"]}, UnknownColumn, "idd"),
        ({"selected_fields": "id"}, ArgumentError, r"\['id'\]"),
    ):
        with pytest.raises(error, match=words) as raised:
            read(**how)
        assert "secret" not in str(raised.value)
    with pytest.raises(ArgumentError, match="mode="):
        hundred().write_iceberg("shop.t", catalog=shop.lake, mode="upsert")  # type: ignore[arg-type]
    assert read() == 1


class TestSource(SourceContract):
    folder: Path

    def make(self) -> Source:
        made = Iceberg(self.folder)
        if not made.catalog.namespace_exists("shop"):
            made.add(pa.table({"id": [*range(10)], "word": [str(i) for i in range(10)]}))
            made.table().append(pa.table({"id": [*range(10, 20)], "word": ["w"] * 10}))
        return IcebergSource("shop.t", Catalog.given(made.lake, None, "test"))
