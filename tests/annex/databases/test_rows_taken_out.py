"""The table decides: a run that goes on, or had finished, looks whether the rows that it inserted are there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.databases.conftest import Store, of_stores
from annex.databases.test_writing import broken, numbers
from headrace.errors import PlanChanged, SinkError

MODES = [("append", None), ("overwrite", None), ("upsert", "id")]
ALL = [(i, 2 * i) for i in range(100)]


def write(store: Store, output: Path, mode: str = "append", key: str | None = None, **more: Any) -> hr.Result:
    data = numbers().with_options(progress=False)
    return data.write_sql("t", store.uri, mode=mode, key=key, output=output, **more)  # type: ignore[arg-type]


def unfinished(store: Store, output: Path) -> None:
    """Two of four parts are in the table, and a third is committed, but not inserted."""
    broken("table.filled", "ENOSPC@3", lambda: write(store, output))
    assert store.run("SELECT count(*) FROM t") == [(50,)]


def finished(store: Store, output: Path) -> None:
    assert write(store, output).rows == 100


def rows(store: Store) -> list[tuple[Any, ...]]:
    return sorted(store.run("SELECT id, y FROM t"))


def remove_file(store: Store) -> None:
    if store.kind == "postgresql":
        pytest.skip("a server has no file to remove")
    os.unlink(store.uri.split("://", 1)[1][1:])


def verified(store: Store, output: Path) -> hr.Verification:
    return hr.verify(output, uri=store.uri)


Begin = Callable[[Store, Path], None]
BEGINS = [unfinished, finished]
Act = Callable[[Store], Any]
ACTS: dict[str, tuple[Act, str]] = {
    "dropped": (lambda store: store.run("DROP TABLE t"), "table t in .* is gone, and with it the .* rows"),
    "dropped with records": (
        lambda store: store.run("DROP TABLE t", "DROP TABLE headrace_commits"),
        "table t in .* is gone",
    ),
    "file removed": (remove_file, "database .* is gone, and with it the .* rows"),
    "all deleted": (lambda store: store.run("DELETE FROM t"), "has none of the .* rows"),
    "and records": (
        lambda store: store.run("DELETE FROM t", "DROP TABLE headrace_commits"),
        "has none of the .* rows",
    ),
    "others' rows": (
        lambda store: store.run("DELETE FROM t", "INSERT INTO t SELECT -1, -1 FROM headrace_commits"),
        "has none of the .* rows",
    ),
}


of_begins = pytest.mark.parametrize(("store", "begin"), of_stores(BEGINS), indirect=["store"])


@pytest.mark.parametrize(("store", "begin", "what"), of_stores(BEGINS, ACTS), indirect=["store"])
def test_a_table_without_the_rows_is_refused(store: Store, tmp_path: Path, begin: Begin, what: str) -> None:
    act, words = ACTS[what]
    begin(store, tmp_path / "a")
    act(store)
    count = "50" if begin is unfinished else "100"
    for said in (
        rf"{words}.*Nothing was touched: on_change='continue' .*another output=",
        rf"the {count} rows that this run inserted",
    ):
        with pytest.raises(SinkError, match=said):
            write(store, tmp_path / "a")
    found = verified(store, tmp_path / "a")
    assert "table" in {each.kind for each in found.findings} and found.state == "damaged"
    assert store.kind != "sqlite" or os.path.exists(tmp_path / "a.db") is ("database" not in words)
    assert write(store, tmp_path / "b").rows == 100
    assert set(ALL) <= set(rows(store))


@pytest.mark.parametrize(
    ("store", "begin", "what"),
    of_stores(BEGINS, ["table", "table and records", "file"]),
    indirect=["store"],
)
def test_a_table_that_is_gone_is_made_anew_if_that_is_asked_for(
    store: Store, tmp_path: Path, begin: Begin, what: str
) -> None:
    begin(store, tmp_path / "a")
    if what == "file":
        remove_file(store)
    else:
        store.run("DROP TABLE t", *["DROP TABLE headrace_commits"] * (what != "table"))
    with pytest.warns(UserWarning, match=r"is gone.*inserted again"):
        assert write(store, tmp_path / "a", on_change="continue").rows == 100
    assert rows(store) == ALL
    assert write(store, tmp_path / "a").rows == 100 and rows(store) == ALL


@pytest.mark.parametrize("begin", BEGINS)
def test_a_part_that_is_gone_with_its_table_is_made_again(
    sqlite: Store, tmp_path: Path, begin: Begin
) -> None:
    begin(sqlite, tmp_path / "a")
    next((tmp_path / "a").glob("part-00001*")).unlink()
    sqlite.run("DROP TABLE t")
    with pytest.raises(SinkError, match="is gone"):
        write(sqlite, tmp_path / "a")
    with pytest.warns(UserWarning, match="inserted again"):
        assert write(sqlite, tmp_path / "a", on_change="continue").rows == 100
    assert rows(sqlite) == ALL


@pytest.mark.parametrize(("store", "begin", "others"), of_stores(BEGINS, [False, True]), indirect=["store"])
def test_rows_that_others_deleted_or_changed_are_said_with_their_number(
    store: Store, tmp_path: Path, begin: Begin, others: bool
) -> None:
    begin(store, tmp_path / "a")
    store.run("DELETE FROM t WHERE id < 7", "UPDATE t SET y = -1 WHERE id = 30")
    more = [(1000, -1)] * 60
    if others:
        store.run("INSERT INTO t VALUES " + ", ".join(["(1000, -1)"] * 60))
    count = 50 if begin is unfinished else 100
    with pytest.warns(
        UserWarning,
        match=rf"has not all of the {count} rows .* deleted or changed 8 of them.*another output=",
    ):
        assert write(store, tmp_path / "a").rows == 100
    left = [row for row in ALL if row[0] >= 7 and row[0] != 30]
    assert rows(store) == sorted([*left, (30, -1), *(more if others else [])])
    (finding,) = verified(store, tmp_path / "a").findings
    assert finding.kind == "table" and "8 of them" in finding.message


@of_begins
def test_a_run_goes_on_without_rows_that_others_deleted_if_that_is_asked_for(
    store: Store, tmp_path: Path, begin: Begin
) -> None:
    begin(store, tmp_path / "a")
    store.run("DELETE FROM t")
    with pytest.warns(UserWarning, match="has none of the"):
        assert write(store, tmp_path / "a", on_change="continue").rows == 100
    assert rows(store) == (ALL[50:] if begin is unfinished else [])


@of_begins
def test_others_append_and_nothing_is_said(store: Store, tmp_path: Path, begin: Begin) -> None:
    store.run("CREATE TABLE t (extra VARCHAR(10), y BIGINT, id BIGINT)")
    begin(store, tmp_path / "a")
    store.run("INSERT INTO t (id, y) VALUES " + ", ".join([*["(7, 14)"] * 300, "(NULL, NULL)"]))
    assert write(store, tmp_path / "a").rows == 100
    assert len(store.run("SELECT id FROM t")) == 401
    assert verified(store, tmp_path / "a").good


def test_records_that_alone_are_gone_do_no_harm_to_a_finished_run(store: Store, tmp_path: Path) -> None:
    finished(store, tmp_path / "a")
    store.run("DROP TABLE headrace_commits")
    assert write(store, tmp_path / "a").rows == 100
    assert rows(store) == ALL
    assert [
        tuple(map(int, row)) for row in store.run("SELECT count(*), sum(rows) FROM headrace_commits")
    ] == [(4, 100)]


@pytest.mark.parametrize("point", ["table.filled", "publish.rename"])
def test_records_that_are_gone_leave_a_part_in_doubt_that_has_not_got_its_name(
    sqlite: Store, tmp_path: Path, point: str
) -> None:
    broken(point, "ENOSPC@3", lambda: write(sqlite, tmp_path / "a"))
    there = rows(sqlite)
    sqlite.run("DROP TABLE headrace_commits")
    with pytest.raises(SinkError, match=r"not known whether .* part-00002.*another output="):
        write(sqlite, tmp_path / "a")
    assert rows(sqlite) == there


@pytest.mark.parametrize("kept", ["database", "records"])
def test_a_table_that_is_dropped_while_a_run_goes_on_is_not_made_anew(
    store: Store, tmp_path: Path, kept: str
) -> None:
    """Rows that were in it would be missing, and the run would end well."""
    if kept == "records" and store.kind == "postgresql":
        pytest.skip("a server has no file to remove")

    def act(batch: dict[str, Any]) -> dict[str, Any]:
        if 60 in batch["id"]:
            store.run("DROP TABLE t") if kept == "database" else remove_file(store)
        return batch

    data = numbers().map_batches(act, version="1").with_options(progress=False)
    with pytest.raises(SinkError, match=r"was dropped|says that .* rows of this run"):
        data.write_sql("t", store.uri, output=tmp_path / "a")
    if kept == "database":
        with pytest.raises(SinkError, match="is gone, and with it the 50 rows"):
            data.write_sql("t", store.uri, output=tmp_path / "a")


@pytest.mark.parametrize(("store", "how"), of_stores(MODES), indirect=["store"])
def test_all_modes_look(store: Store, tmp_path: Path, how: tuple[str, str | None]) -> None:
    mode, key = how
    out = tmp_path / "a"
    write(store, out, mode, key)
    if mode != "overwrite":
        assert write(store, out, mode, key).resumed
    assert verified(store, out).good
    store.run("DELETE FROM t WHERE id < 3")
    if mode != "overwrite":  # which writes all rows again
        with pytest.warns(UserWarning, match=r"deleted (or changed )?3 of them"):
            write(store, out, mode, key)
    assert "3 of them" in str(verified(store, out))
    store.run("DROP TABLE t")
    assert "is gone" in str(verified(store, out))
    if mode == "overwrite":
        assert write(store, out, mode, key).rows == 100
    else:
        with pytest.raises(SinkError, match="is gone"):
            write(store, out, mode, key)
        with pytest.warns(UserWarning, match="inserted again"):
            assert write(store, out, mode, key, on_change="continue").rows == 100
    assert rows(store) == ALL


@pytest.mark.parametrize(("mode", "key"), [("overwrite", None), ("upsert", "id")])
def test_a_table_that_is_dropped_before_the_run_is_marked_as_finished(
    store: Store, tmp_path: Path, mode: str, key: str | None
) -> None:
    broken("finish.success", "ENOSPC", lambda: write(store, tmp_path / "a", mode, key))
    assert rows(store) == ALL
    store.run("DROP TABLE t")
    with pytest.raises(SinkError, match="is gone, and with it the 100 rows"):
        write(store, tmp_path / "a", mode, key)
    with pytest.warns(UserWarning, match="inserted again"):
        write(store, tmp_path / "a", mode, key, on_change="continue")
    assert rows(store) == ALL


def test_rows_that_others_updated_are_there_after_an_upsert(store: Store, tmp_path: Path) -> None:
    write(store, tmp_path / "a", "upsert", "id")
    store.run("UPDATE t SET y = -1", "DELETE FROM t WHERE id = 5")
    with pytest.warns(UserWarning, match=r"not all of the 100 rows .* deleted 1 of them"):
        write(store, tmp_path / "a", "upsert", "id")


def test_a_column_that_is_gone(store: Store, tmp_path: Path) -> None:
    finished(store, tmp_path / "a")
    store.run("ALTER TABLE t DROP COLUMN y")
    with pytest.raises(SinkError, match="has no column 'y' any more"):
        write(store, tmp_path / "a")


def test_a_run_begins_anew_where_the_table_is_gone(store: Store, tmp_path: Path) -> None:
    finished(store, tmp_path / "a")
    data = numbers(100, 3).with_options(progress=False, on_change="restart")
    with pytest.raises(PlanChanged, match="the table t has rows of it already"):
        data.write_sql("t", store.uri, output=tmp_path / "a")
    store.run("DROP TABLE t")
    assert data.write_sql("t", store.uri, output=tmp_path / "a").rows == 100
    assert rows(store) == [(i, 3 * i) for i in range(100)]


def test_equal_rows_are_counted(store: Store, tmp_path: Path) -> None:
    data = hr.from_items([{"x": None if i % 4 < 2 else 1, "y": i % 2} for i in range(40)]).with_options(
        engine="inline", progress=False
    )
    store.run("CREATE TABLE t (x BIGINT, y BIGINT)")
    data.write_sql("t", store.uri, output=tmp_path / "a")
    assert data.write_sql("t", store.uri, output=tmp_path / "a").resumed
    store.run(
        "DELETE FROM t WHERE y = 0 AND x IS NULL", "INSERT INTO t VALUES " + ", ".join(["(NULL, 0)"] * 7)
    )
    store.run("INSERT INTO t VALUES " + ", ".join(["(NULL, 5)"] * 70))
    with pytest.warns(UserWarning, match="deleted or changed 3 of them"):
        data.write_sql("t", store.uri, output=tmp_path / "a")
