"""Rows matched by a key: what a loop would leave that took the rows one after another, whoever commits when."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from annex.databases.conftest import Store
from annex.databases.test_writing import broken, shards
from headrace.errors import ArgumentError, PlanChanged, SinkError

MADE = "CREATE TABLE t (k BIGINT PRIMARY KEY, y BIGINT, kept VARCHAR(10))"
OLD = "INSERT INTO t VALUES (1, -1, 'old'), (1000, -1, 'old')"


def keyed(n: int = 100, keys: int = 1_000_000) -> hr.Dataset:
    """Rows (k, y) of which every ``keys``-th has the same k."""
    data = shards(n).map_batches(lambda batch: {"k": batch["id"] % keys, "y": batch["id"]})
    return data.with_options(engine="inline", shard_rows=25, progress=False)


def upsert(data: hr.Dataset, store: Store, output: Path, key: Any = "k", **more: Any) -> hr.Result:
    return data.write_sql("t", store.uri, mode="upsert", key=key, output=output, **more)


def test_rows_are_inserted_or_take_the_place_of_those_with_their_key(store: Store, tmp_path: Path) -> None:
    store.run(MADE, OLD)
    assert upsert(keyed(60), store, tmp_path / "a").rows == 60
    first = [(0, 0, None), (1, 1, "old")] + [(i, i, None) for i in range(2, 60)] + [(1000, -1, "old")]
    assert sorted(store.run("SELECT k, y, kept FROM t")) == first
    store.run("UPDATE t SET y = 7 WHERE k = 3")
    assert upsert(keyed(60), store, tmp_path / "a").rows == 60  # it has finished: nothing is done again
    assert store.run("SELECT y FROM t WHERE k = 3") == [(7,)]
    total = store.run("SELECT count(*), sum(rows) FROM headrace_commits WHERE table_name = 't'")
    assert [tuple(map(int, row)) for row in total] == [(3, 60)]
    upsert(keyed(2), store, tmp_path / "b")  # a later run
    assert len(store.run("SELECT k FROM t")) == 61


def test_the_last_row_of_a_key_stays_whatever_was_committed_first(store: Store, tmp_path: Path) -> None:
    """Keys 0 to 29 have rows in several shards; the first shard is made again, and committed last of all."""
    store.run(MADE, OLD)
    expected = [(k, max(range(k, 100, 30)), "old" if k == 1 else None) for k in range(30)]
    broken("finish.manifest", "ENOSPC", lambda: upsert(keyed(100, 30), store, tmp_path / "a"))
    assert sorted(store.run("SELECT k FROM t")) == [(1,), (1000,)], "nothing is to be seen before the end"
    (part,) = (tmp_path / "a").glob("part-00000*")
    part.unlink()
    with pytest.warns(UserWarning, match=r"70 of the rows .* t have the same key \(k\) as a later row"):
        assert upsert(keyed(100, 30), store, tmp_path / "a").rows == 100
    assert sorted(store.run("SELECT k, y, kept FROM t"))[:-1] == expected


def test_columns_may_have_the_names_that_a_merge_uses(store: Store, tmp_path: Path) -> None:
    names = ["k", "headrace_number", "Headrace_Place"]
    store.run('CREATE TABLE t (k BIGINT PRIMARY KEY, headrace_number BIGINT, "Headrace_Place" BIGINT)')
    rows = [(1, 1, 1), (1, 7, 1), (2, 8, 1), (2, 9, 1)]
    data = hr.from_items([dict(zip(names, row, strict=True)) for row in rows])
    with pytest.warns(UserWarning, match="2 of the rows"):
        upsert(data.with_options(engine="inline", progress=False), store, tmp_path / "a")
    assert sorted(store.run("SELECT * FROM t")) == [(1, 7, 1), (2, 9, 1)]


@pytest.mark.parametrize("point", ["table.filled", "finish.success"])
def test_an_error_at_the_end_neither_merges_in_part_nor_twice(
    store: Store, tmp_path: Path, point: str
) -> None:
    store.run(MADE, OLD)
    broken(point, "ENOSPC", lambda: upsert(keyed(), store, tmp_path / "a"))
    merged = point == "finish.success"
    assert len(store.run("SELECT k FROM t")) == (101 if merged else 2)
    if merged:  # a part that is gone is in the table all the same, and what others did since then stays
        store.run("UPDATE t SET y = 7 WHERE k = 30")
        next((tmp_path / "a").glob("part-00001*")).unlink()
    assert upsert(keyed(), store, tmp_path / "a").rows == 100
    assert dict(store.run("SELECT k, y FROM t")) == {
        **{i: i for i in range(100)},
        1000: -1,
        30: 7 if merged else 30,
    }


def test_a_table_is_made_with_its_key_and_new_files_are_merged_alone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def write(**more: Any) -> hr.Result:
        data = hr.read_parquet(tmp_path / "in").with_options(engine="inline", on_change="continue")
        return upsert(data, store, tmp_path / "out", key=["day", "k"], **more)

    pq.write_table(pa.table({"k": [1, 2], "day": ["a", "a"], "y": [0, 1]}), tmp_path / "in" / "a.parquet")
    assert write().rows == 2
    store.run("UPDATE t SET y = 9 WHERE k = 1")
    pq.write_table(pa.table({"k": [2, 2], "day": ["a", "b"], "y": [2, 3]}), tmp_path / "in" / "b.parquet")
    assert write().rows == 4
    assert sorted(store.run("SELECT k, day, y FROM t")) == [(1, "a", 9), (2, "a", 2), (2, "b", 3)]
    with pytest.raises(
        SinkError, match=r"no unique constraint on k, so .* It has such constraints on: day, k\."
    ):
        upsert(keyed(), store, tmp_path / "other")


@pytest.mark.parametrize(
    ("made", "key", "unique"),
    [
        ("k BIGINT, y BIGINT UNIQUE", ["k"], False),
        ("k BIGINT, y BIGINT, UNIQUE (y, k)", ["k", "y"], True),
        ("k BIGINT, y BIGINT, PRIMARY KEY (k, y)", "k", False),
        ("k BIGINT UNIQUE, y BIGINT", ["k", "y"], False),
        ("k BIGINT, y BIGINT); CREATE UNIQUE INDEX i ON t (y, k", ["k", "y"], True),
        ("k BIGINT, y BIGINT); CREATE UNIQUE INDEX i ON t ((k + 1), y", ["k", "y"], False),
        ("k BIGINT, y BIGINT); CREATE INDEX i ON t (k", "k", False),
        ("x BIGINT UNIQUE", "k", False),
    ],
)
def test_the_key_must_be_unique_in_the_table(
    store: Store, tmp_path: Path, made: str, key: Any, unique: bool
) -> None:
    store.run(*f"CREATE TABLE t ({made})".split(";"))
    if unique:
        upsert(keyed(3), store, tmp_path / "a", key=key)
        assert sorted(store.run("SELECT k, y FROM t")) == [(0, 0), (1, 1), (2, 2)]
        return
    with pytest.raises(SinkError, match=r"has no unique constraint on k|has no column 'k' of key=") as raised:
        upsert(keyed(3), store, tmp_path / "a", key=key)
    assert store.run("SELECT * FROM t") == []
    if "CREATE UNIQUE INDEX" in str(raised.value):  # what it says to do helps
        store.run(str(raised.value).rpartition("make one: ")[2].rstrip("."))
        assert upsert(keyed(3), store, tmp_path / "a", key=key).rows == 3


def test_postgresql_cannot_use_every_unique_index(postgresql: Store, tmp_path: Path) -> None:
    postgresql.run(
        "CREATE TABLE t (k BIGINT UNIQUE DEFERRABLE, y BIGINT)", "CREATE UNIQUE INDEX i ON t (y) WHERE y > 0"
    )
    postgresql.run("CREATE UNIQUE INDEX j ON t (k)")  # beside the other, it cannot be used
    for key in ("k", "y"):
        with pytest.raises(SinkError, match="no unique constraint on"):
            upsert(keyed(3), postgresql, tmp_path / key, key=key)
    postgresql.run(
        "ALTER TABLE t DROP CONSTRAINT t_k_key", "DROP INDEX j", "CREATE UNIQUE INDEX j ON t (k) INCLUDE (y)"
    )
    assert upsert(keyed(3), postgresql, tmp_path / "c").rows == 3


def test_names_that_sqlite_cannot_have_are_refused_before_rows_are_made(
    sqlite: Store, tmp_path: Path
) -> None:
    data = hr.from_items([{"k": 1, "K": 2}]).with_options(engine="inline", progress=False)
    with pytest.raises(SinkError, match="the columns 'k' and 'K', which are the same name in sqlite"):
        upsert(data, sqlite, tmp_path / "a")
    with pytest.raises(SinkError, match=r"main\.t: SQLite has no schemas"):
        data.drop_columns(["K"]).write_sql("main.t", sqlite.uri, output=tmp_path / "b")
    assert upsert(data.drop_columns(["K"]), sqlite, tmp_path / "c").rows == 1


def test_postgresql_columns_that_round_are_refused(postgresql: Store, tmp_path: Path) -> None:
    """Two keys would be one."""
    moments = pa.array([1, 400_001], pa.timestamp("us"))
    pq.write_table(pa.table({"k": moments}), tmp_path / "in.parquet")
    data = hr.read_parquet(str(tmp_path / "in.parquet")).with_options(engine="inline", progress=False)
    postgresql.run("CREATE TABLE t (k timestamp(0) PRIMARY KEY)")
    with pytest.raises(SinkError, match=r"'k' is of type timestamp\[us\], and the table t .* not written"):
        upsert(data, postgresql, tmp_path / "a")
    postgresql.run("DROP TABLE t", "CREATE TABLE t (k timestamp(6) PRIMARY KEY)")
    assert upsert(data, postgresql, tmp_path / "b").rows == 2
    assert len(postgresql.run("SELECT k::text FROM t")) == 2


def test_sqlite_keys_that_differ_in_case_only_may_be_one(sqlite: Store, tmp_path: Path) -> None:
    sqlite.run("CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, y BIGINT)")
    data = hr.from_items([{"k": k, "y": y} for y, k in enumerate(["b", "B", "a", "A", "b"])])
    with pytest.warns(UserWarning, match="later row"):
        upsert(data.with_options(engine="inline"), sqlite, tmp_path / "a")
    assert sorted(y for _, y in sqlite.run("SELECT k, y FROM t")) == [3, 4]


def test_rows_without_a_key_and_rows_that_are_refused_leave_nothing(store: Store, tmp_path: Path) -> None:
    store.run("CREATE TABLE t (k BIGINT PRIMARY KEY, y BIGINT CHECK (y < 90))")
    nulls = hr.from_items([{"k": 1, "y": 2}, {"k": None, "y": 3}]).with_options(engine="inline")
    with pytest.raises(SinkError, match="The key column 'k' has nulls"):
        upsert(nulls, store, tmp_path / "nulls")
    with pytest.raises(SinkError, match="The rows have no column 'k'"):
        upsert(keyed().drop_columns(["k"]), store, tmp_path / "none")
    with pytest.raises(
        SinkError, match=r"refuses to merge rows of the table t: .* The table was not changed"
    ):
        upsert(keyed(), store, tmp_path / "a")
    assert store.run("SELECT * FROM t") == []

    def clipped(batch: dict[str, Any]) -> dict[str, Any]:
        return {"k": batch["id"], "y": np.minimum(batch["id"], 89)}

    data = shards(100).map_batches(clipped).with_options(engine="inline", shard_rows=25)
    upsert(data, store, tmp_path / "a", on_change="restart")
    assert sorted(store.run("SELECT k, y FROM t")) == [(i, min(i, 89)) for i in range(100)]


def test_rows_that_were_added_are_not_added_again_by_a_restart(sqlite: Store, tmp_path: Path) -> None:
    def write(factor: int, **more: Any) -> hr.Result:
        data = shards(50).map_batches(lambda batch: {"y": batch["id"] * factor})
        return data.with_options(engine="inline").write_sql("t", sqlite.uri, output=tmp_path / "a", **more)

    write(1)
    with pytest.raises(
        PlanChanged, match="cannot start from the beginning: the table t has rows of it already"
    ):
        write(2, on_change="restart")
    assert sorted(sqlite.run("SELECT y FROM t")) == [(i,) for i in range(50)]
    write(2, on_change="restart", mode="overwrite")
    assert sorted(sqlite.run("SELECT y FROM t")) == [(2 * i,) for i in range(50)]


def test_arguments_that_make_no_sense(sqlite: Store, tmp_path: Path) -> None:
    for given, said in (
        ({"mode": "upsert"}, "needs key="),
        ({"mode": "append", "key": "k"}, "key= is for mode='upsert'"),
        ({"mode": "upsert", "key": ["k", "k"]}, "several names, not"),
        ({"mode": "upsert", "key": 3}, "several names, not 3"),
        ({"mode": "upserts", "key": "k"}, "Did you mean 'upsert'"),
    ):
        with pytest.raises(ArgumentError, match=said):
            keyed().write_sql("t", sqlite.uri, output=os.fspath(tmp_path / "a"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("point", ["", "table.filled", "finish.success"])
def test_an_update_writes_to_rows_that_are_there(store: Store, tmp_path: Path, point: str) -> None:
    """Once, wherever the run fails; rows that others delete before the commit are not brought back."""
    store.run(MADE, "INSERT INTO t VALUES (1, -1, 'old'), (30, -1, 'old'), (1000, -1, 'old'), (7, -1, 'old')")

    def write() -> hr.Result:
        return keyed().write_sql("t", store.uri, mode="update", key="k", output=tmp_path / "a")

    if point:
        with (
            pytest.warns(UserWarning, match="no row with 97 of the keys")
            if point != "table.filled"
            else contextlib.nullcontext()
        ):
            broken(point, "ENOSPC", write)
    if point != "finish.success":
        assert {y for _, y, _ in store.run("SELECT * FROM t")} == {-1}
        store.run("DELETE FROM t WHERE k = 7")
        with pytest.warns(UserWarning, match="no row with 98 of the keys"):
            write()
    else:
        store.run("UPDATE t SET y = 5 WHERE k = 7")
        write()
    expected = [(1, 1, "old"), (30, 30, "old"), (1000, -1, "old")]
    expected += [(7, 5, "old")] if point == "finish.success" else []
    assert sorted(store.run("SELECT k, y, kept FROM t")) == sorted(expected)
    assert write().resumed and sorted(store.run("SELECT k, y, kept FROM t")) == sorted(expected)


def test_updates_that_make_no_sense(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="There is no table t in"):
        keyed().write_sql("t", store.uri, mode="update", key="k", output=tmp_path / "a")
    store.run(MADE)
    with pytest.raises(SinkError, match="nothing to write"):
        data = keyed().select_columns(["k"])
        data.write_sql("t", store.uri, mode="update", key="k", output=tmp_path / "b")
    with pytest.raises(ArgumentError, match=r"mode='update' needs key="):
        keyed().write_sql("t", store.uri, mode="update", output=tmp_path / "c")
