"""Connects to a database, and begins transactions, by the scheme of its address."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from headrace.annex.databases.connections import Connection, Database
from headrace.annex.databases.transactions import Transaction


def opened(database: Database, snapshot: str = "") -> Connection:
    """Connect to a database, at a snapshot that another connection holds, if there is one."""
    if database.scheme == "sqlite":
        from headrace.annex.databases.sqlite import SqliteConnection

        return SqliteConnection(database)
    if database.scheme == "duckdb":
        from headrace.annex.databases.duckdb import DuckdbConnection

        return DuckdbConnection(database)
    from headrace.annex.databases.postgresql import PostgresqlConnection

    return PostgresqlConnection(database, snapshot)


_FRESH = 30.0  # seconds; servers, and what is between, drop connections that rest for minutes


def begun(database: Database) -> Transaction:
    """Connect to a database and begin a transaction."""
    if database.scheme == "sqlite":
        from headrace.annex.databases.sqlite import SqliteTransaction

        return SqliteTransaction(database)
    if database.scheme == "duckdb":
        from headrace.annex.databases.duckdb import DuckdbTransaction

        return DuckdbTransaction(database)
    from headrace.annex.databases.postgresql import PostgresqlTransaction

    return PostgresqlTransaction(database)


class Connections:
    """Begins one transaction after another, and keeps the connection of one that was committed for the next.

    To connect to PostgreSQL takes as long as to insert 50,000 rows. A connection whose transaction was not committed
    is closed. A copy in another process has none.
    """

    def __init__(self) -> None:
        self._kept: Transaction | None = None
        self._since = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Connections, ()

    def begun(self, database: Database) -> Transaction:
        """Begin a transaction: of the connection that was kept, unless it was lost or rests for long."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if time.monotonic() - self._since < _FRESH and kept.again():
                return kept
            _closed(kept)
        return begun(database)

    def ended(self, transaction: Transaction) -> None:
        """Take back a connection: one that may be used again is kept, another one is closed."""
        if self._kept is None and transaction.rests():
            self._kept, self._since = transaction, time.monotonic()
        else:
            _closed(transaction)

    def close(self) -> None:
        """Close the connection that is kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            _closed(kept)


def _closed(transaction: Transaction) -> None:
    with contextlib.suppress(*transaction.failures):
        transaction.close()
