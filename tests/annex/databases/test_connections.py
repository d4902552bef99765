"""A driver keeps its connection to PostgreSQL from part to part; a connection that was lost is opened anew."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.databases.conftest import Store
from headrace.annex.databases import transactions
from headrace.annex.databases.connections import parse
from headrace.annex.databases.sink import SqlTable
from headrace.errors import SinkError
from headrace.sources.range import RangeSource


class Opened(list[Any]):
    """Transactions for which somebody connected, and the numbers of their processes in the server."""

    pid = 0

    @property
    def closed(self) -> bool:
        return all(each._connection._closed for each in self)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found, begun = Opened(), transactions.begun

    def counted(database: Any) -> Any:
        found.append(begun(database))
        found.pid = found[-1].rows("SELECT pg_backend_pid()::int8")[0][0]
        return found[-1]

    monkeypatch.setattr(transactions, "begun", counted)
    return found


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something happen after each part."""
    reveal = SqlTable.reveal

    def have(act: Callable[[], object]) -> None:
        def revealed(self: SqlTable, files: Any, schema: Any) -> None:
            reveal(self, files, schema)
            act()

        monkeypatch.setattr(SqlTable, "reveal", revealed)

    return have


def write(store: Store, out: Path, **options: Any) -> hr.Result:
    data = hr.Dataset.from_source(RangeSource(100, rows_per_split=25))
    data = data.with_options(engine="inline", shard_rows=25, progress=False)
    return data.write_sql("t", store.uri, output=out, **options)


def test_one_connection_for_all_parts(
    postgresql: Store, tmp_path: Path, opened: Opened, between: Any
) -> None:
    seen: list[list[tuple[Any, ...]]] = []
    state = "SELECT state, xact_start IS NULL FROM pg_stat_activity WHERE pid ="
    between(lambda: seen.append(postgresql.run(f"{state} {opened.pid}")))
    assert write(postgresql, tmp_path / "out").rows == 100
    assert len(opened) == 1 + 1  # one that looks at the table before the run
    assert seen == [[("idle", True)]] * 4  # no transaction while it waits for the next part
    assert opened.closed
    assert sorted(postgresql.run("SELECT id FROM t")) == [(i,) for i in range(100)]


def test_a_connection_that_was_lost(postgresql: Store, tmp_path: Path, opened: Opened, between: Any) -> None:
    between(lambda: postgresql.run(f"SELECT pg_terminate_backend({opened.pid}, 60000)::text"))
    assert write(postgresql, tmp_path / "out").rows == 100
    assert len(opened) == 1 + 4 + 1 and opened.closed  # one that looks at all rows in the end
    assert sorted(postgresql.run("SELECT id FROM t")) == [(i,) for i in range(100)]
    assert postgresql.run("SELECT count(*), sum(rows)::int8 FROM headrace_commits") == [(4, 100)]


def test_a_connection_that_rests_for_long(
    postgresql: Store, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_FRESH", 0.0)
    write(postgresql, tmp_path / "out")
    assert len(opened) == 1 + 4 + 1 and opened.closed


def test_rows_that_are_refused_leave_no_connection(postgresql: Store, tmp_path: Path, opened: Opened) -> None:
    postgresql.run("CREATE TABLE t (id int8 CHECK (id <> 60))")
    with pytest.raises(SinkError, match="refuses rows of part-00002"):
        write(postgresql, tmp_path / "out")
    assert len(opened) == 1 + 1 and opened.closed
    assert sorted(postgresql.run("SELECT id FROM t")) == [(i,) for i in range(50)]
    postgresql.run("ALTER TABLE t DROP CONSTRAINT t_id_check")
    assert write(postgresql, tmp_path / "out").rows == 100
    assert sorted(postgresql.run("SELECT id FROM t")) == [(i,) for i in range(100)]


def test_a_table_of_commits_that_somebody_drops(postgresql: Store, tmp_path: Path, between: Any) -> None:
    between(lambda: postgresql.run("DROP TABLE IF EXISTS headrace_commits"))
    with pytest.raises(SinkError, match="headrace_commits"):
        write(postgresql, tmp_path / "out")
    assert sorted(postgresql.run("SELECT id FROM t")) == [(i,) for i in range(25)]


def test_a_copy_has_no_connection(postgresql: Store, opened: Opened) -> None:
    kept = transactions.Connections()
    transaction = kept.begun(parse(postgresql.uri, "write_sql"))
    transaction.execute("CREATE TABLE a (x int8)")
    transaction.commit()
    kept.ended(transaction)
    assert pickle.loads(pickle.dumps(kept))._kept is None
    assert kept.begun(parse(postgresql.uri, "write_sql")) is transaction
    transaction.execute("INSERT INTO a VALUES (1)")
    kept.ended(transaction)  # not committed
    assert postgresql.run("SELECT count(*) FROM a") == [(0,)]
    assert len(opened) == 1 and opened.closed
