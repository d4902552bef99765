"""Rows into tables: all of them, exactly, once."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from annex.databases.conftest import Store
from headrace.core import failpoints
from headrace.errors import ArgumentError, OutputExists, PlanChanged, RequirementNotMet, SinkError
from headrace.output.publishing import FolderPublisher
from headrace.sources.range import RangeSource


def shards(n: int) -> hr.Dataset:
    return hr.Dataset.from_source(RangeSource(n, rows_per_split=25))


def numbers(n: int = 100, factor: int = 2) -> hr.Dataset:
    data = shards(n).map_batches(lambda batch: {"id": batch["id"], "y": batch["id"] * factor})
    return data.with_options(engine="inline", shard_rows=25)


def test_rows_are_inserted_once_and_added_to(store: Store, tmp_path: Path) -> None:
    for _ in range(2):  # the second time there is nothing to do
        assert numbers().write_sql("t", store.uri, output=tmp_path / "a").rows == 100
    assert numbers(10).write_sql("t", store.uri, output=tmp_path / "b").rows == 10
    expected = sorted([(i, 2 * i) for i in range(100)] + [(i, 2 * i) for i in range(10)])
    assert sorted(store.run("SELECT id, y FROM t")) == expected
    with pytest.raises(OutputExists, match="has rows already"):
        numbers(5).write_sql("t", store.uri, mode="error", output=tmp_path / "c")
    assert numbers(7).write_sql("t", store.uri, mode="overwrite", output=tmp_path / "d").rows == 7
    assert sorted(store.run("SELECT id, y FROM t")) == [(i, 2 * i) for i in range(7)]
    numbers(3, 5).write_sql("t", store.uri, mode="overwrite", output=tmp_path / "d")
    assert sorted(store.run("SELECT id, y FROM t")) == [(0, 0), (1, 5), (2, 10)]
    numbers(3).write_sql("fresh", store.uri, mode="error", output=tmp_path / "e")
    assert sorted(store.run("SELECT id, y FROM fresh")) == [(0, 0), (1, 2), (2, 4)]
    total = store.run("SELECT run, sum(rows) FROM headrace_commits WHERE table_name = 't' GROUP BY run")
    assert sorted(int(rows) for _, rows in total) == [3, 7, 10, 100]


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
def test_types_come_back_as_they_were(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(kind)
    table = pa.table(
        {
            "b": [True, None],
            "u": pa.array([4294967295, None], pa.uint32()),
            "f": pa.array([float("nan"), -0.5], pa.float32()),
            "s": pa.array(["ä", None]).dictionary_encode(),
            "x": [b"\x00\xff", None],
            "d": [date(1, 1, 1), date(9999, 12, 31)],
            "t": pa.array([datetime(2024, 1, 2, 3, 4, 5, 6), None], pa.timestamp("us")),
            "z": pa.array([datetime(2024, 1, 2, tzinfo=UTC), None], pa.timestamp("ms", "Europe/Berlin")),
            "n": pa.array([Decimal("12345678901234.50"), None], pa.decimal128(20, 2)),
        }
    )
    hr.from_arrow(table).with_options(engine="inline").write_sql("t", store.uri, output=tmp_path / "a")
    (row,) = hr.read_sql("SELECT * FROM t WHERE b", store.uri).with_options(engine="inline").take_all()
    assert np.isnan(row.pop("f"))
    assert row == {
        "b": True,
        "u": 4294967295,
        "s": "ä",
        "x": b"\x00\xff",
        "d": date(1, 1, 1),
        "t": datetime(2024, 1, 2, 3, 4, 5, 6),
        "z": datetime(2024, 1, 2, tzinfo=UTC),
        "n": Decimal("12345678901234.50"),
    }


def test_what_does_not_fit_the_table_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    store.run("CREATE TABLE t (id BIGINT, y VARCHAR(10))", "INSERT INTO t VALUES (1, 'kept')")
    for at, (data, said) in enumerate(
        (
            (numbers(), r"'y' is of type int64, and the table t .* has it as string"),
            (numbers().rename_columns({"y": "z"}), "has no column 'z'; it has id, y"),
            (hr.from_items([{"id": 1.5}]), "'id' is of type double"),
            (hr.from_items([{"id": [1, 2]}]), "'id' is of type list"),
            (hr.from_arrow(pa.table({"id": pa.array([2**64 - 1], pa.uint64())})), "'id' is of type uint64"),
        )
    ):
        with pytest.raises(SinkError, match=said):
            data.with_options(engine="inline").write_sql("t", store.uri, output=tmp_path / str(at))
    assert store.run("SELECT * FROM t") == [(1, "kept")]


def test_sqlite_makes_no_null_of_nan_and_no_text_of_dates(sqlite: Store, tmp_path: Path) -> None:
    for name, value, said in (("x", float("nan"), "holds NaN"), ("d", date(2024, 1, 1), "has no such type")):
        data = hr.from_items([{name: value}]).with_options(engine="inline")
        with pytest.raises(SinkError, match=said):
            data.write_sql("t", sqlite.uri, output=tmp_path / name)


@pytest.mark.parametrize("then", ["published", "discarded"])
def test_rows_that_are_refused_when_they_are_published_are_kept(
    store: Store, tmp_path: Path, then: str
) -> None:
    with pytest.raises(RequirementNotMet):
        numbers().require(rows=hr.at_least(101)).write_sql("t", store.uri, output=tmp_path / "a")
    store.run("CREATE TABLE t (id BIGINT PRIMARY KEY, y BIGINT)")
    store.run("INSERT INTO t VALUES (60, 0)")
    with pytest.raises(SinkError, match=r"refuses rows of part-00002.*Change the table, and publish again"):
        hr.publish(tmp_path / "a", because="why not", uri=store.uri)
    assert store.run("SELECT id, y FROM t") == [(60, 0)]
    if then == "discarded":
        hr.discard(tmp_path / "a")
        return
    store.run("DELETE FROM t")
    assert hr.publish(tmp_path / "a", because="why not", uri=store.uri).rows == 100
    assert sorted(store.run("SELECT id, y FROM t")) == [(i, 2 * i) for i in range(100)]
    assert hr.verify(tmp_path / "a", uri=store.uri).good


def test_refused_rows_leave_nothing_and_a_corrected_run_goes_on(store: Store, tmp_path: Path) -> None:
    store.run("CREATE TABLE t (id BIGINT PRIMARY KEY, y BIGINT CHECK (y < 150))")
    with pytest.raises(SinkError, match="refuses rows of part-00003") as raised:
        numbers().write_sql("t", store.uri, output=tmp_path / "a")
    assert "None of its rows were inserted" in str(raised.value)
    assert "(75, 150)" not in str(raised.value), "the values of a row"
    assert store.run("SELECT count(*) FROM t") == [(75,)]
    with pytest.raises(SinkError, match="refuses rows of part-00003"):
        numbers().write_sql("t", store.uri, output=tmp_path / "a")

    def clipped(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "y": np.minimum(batch["id"] * 2, 149)}

    data = shards(100).map_batches(clipped).with_options(engine="inline", shard_rows=25)
    assert data.write_sql("t", store.uri, output=tmp_path / "a", on_change="continue").rows == 100
    assert sorted(store.run("SELECT id, y FROM t")) == [(i, min(2 * i, 149)) for i in range(100)]


def broken(point: str, action: str, run: Any) -> None:
    failpoints.activate({point: action})
    try:
        with contextlib.suppress(hr.errors.HeadraceError, OSError):
            run()
    finally:
        failpoints.activate({})


def test_a_part_that_is_gone_is_in_the_table_all_the_same(sqlite: Store, tmp_path: Path) -> None:
    broken("finish.manifest", "ENOSPC", lambda: numbers().write_sql("t", sqlite.uri, output=tmp_path / "a"))
    for part in (tmp_path / "a").glob("part-00001*"):
        os.unlink(part)
    assert numbers().write_sql("t", sqlite.uri, output=tmp_path / "a").rows == 100
    assert sorted(sqlite.run("SELECT id, y FROM t")) == [(i, 2 * i) for i in range(100)]


def test_arguments_that_make_no_sense(sqlite: Store, tmp_path: Path) -> None:
    for given, said in (
        ({"mode": "merge"}, "mode= is 'append'"),
        ({"table": "a.b.c"}, "such as 'sales'"),
        ({"table": "headrace_commits"}, "Choose another"),
        ({"uri": "bigquery://project"}, "have it load Parquet"),
        ({"output": "s3://bucket/x"}, "of this machine"),
    ):
        with pytest.raises(ArgumentError, match=said):
            numbers().write_sql(**{"table": "t", "uri": sqlite.uri, **given})  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="Cannot write to sqlite:///"):
        numbers().write_sql("t", f"sqlite:///{tmp_path}/none/a.db", output=tmp_path / "a")


def test_new_rows_after_an_end_that_was_cut_off_are_there_too(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table was replaced, ``_SUCCESS`` is missing, and new files come before the next driver."""

    def write() -> hr.Result:
        data = hr.read_parquet(str(tmp_path / "in")).with_options(engine="inline", on_change="continue")
        return data.write_sql("t", sqlite.uri, mode="overwrite", output=tmp_path / "out")

    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": range(20)}), tmp_path / "in" / "a.parquet")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            FolderPublisher,
            "finish",
            lambda self, success, lasting: (_ for _ in ()).throw(KeyboardInterrupt()),
        )
        write()
    assert len(sqlite.run("SELECT id FROM t")) == 20
    pq.write_table(pa.table({"id": range(20, 50)}), tmp_path / "in" / "b.parquet")
    assert write().rows == 50
    assert sorted(sqlite.run("SELECT id FROM t")) == [(i,) for i in range(50)]


def test_rows_come_after_a_run_without_any(sqlite: Store, tmp_path: Path) -> None:
    def write() -> hr.Result:
        data = hr.read_parquet(str(tmp_path / "in")).with_options(engine="inline", on_change="continue")
        return data.write_sql("t", sqlite.uri, output=tmp_path / "out")

    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "in" / "a.parquet")
    assert write().rows == 0
    pq.write_table(pa.table({"id": range(50)}), tmp_path / "in" / "b.parquet")
    assert write().rows == 50 and write().rows == 50
    assert sorted(sqlite.run("SELECT id FROM t")) == [(i,) for i in range(50)]


@pytest.mark.parametrize("mode", ["append", "error", "upsert", "overwrite"])
def test_duckdb_into_the_file_that_is_read(duckdb: Store, tmp_path: Path, mode: Any) -> None:
    """Rows are inserted when all were read, or nothing begins: a file has no readers beside one who writes."""
    duckdb.run("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    (tmp_path / "link").symlink_to(tmp_path / "a.duckdb")
    read = hr.read_sql("SELECT * FROM t", f"duckdb:///{tmp_path}/link", partition_column="id", partitions=4)
    read = read.with_options(workers=2, progress=False)
    key = {"key": "id"} if mode == "upsert" else {}
    if mode in ("append", "error"):
        for data in (read, read.union(numbers(3).drop_columns(["y"]))):
            with pytest.raises(SinkError, match=r"would insert into the same file at the same time"):
                data.write_sql("u", duckdb.uri, mode=mode, output=tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return
    assert read.write_sql("u", duckdb.uri, mode=mode, output=tmp_path / "out", **key).rows == 100
    assert sorted(duckdb.run("SELECT id FROM u")) == [(i,) for i in range(100)]


def test_one_table_name_in_two_databases(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    for address in (sqlite.uri, f"sqlite:///{tmp_path}/b.db"):
        assert numbers(3).write_sql("t", address).rows == 3
    assert (tmp_path / "t-in-a-output/_SUCCESS").exists() and (tmp_path / "t-in-b-output/_SUCCESS").exists()
    with pytest.raises(PlanChanged, match=r"a folder of its own with another output="):
        numbers(3).write_sql("t", f"sqlite:///{tmp_path}/old/a.db")
