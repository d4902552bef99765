"""What writing needs of a database: one connection, one transaction, and the table that says which parts it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headrace.annex.databases.addresses import Database, quoted_name
from headrace.errors import SinkError


class Refused(Exception):
    """The database refuses the rows themselves: a constraint, or a value that it cannot hold."""


class Transaction(Protocol):
    """A connection in one transaction, which is rolled back unless ``commit`` is called. It raises ``failures``."""

    @property
    def failures(self) -> tuple[type[BaseException], ...]:
        """The errors of its driver."""
        ...

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return the columns of a table with the types that they hold, None for others; None if there is no table."""
        ...

    @property
    def is_first(self) -> bool:
        """True unless a transaction of this connection was committed."""
        ...

    @property
    def temporary(self) -> str:
        """The name of the temporary table, with its schema, that ``made_temporary`` makes; ``insert`` takes it."""
        ...

    def unique(self, table: str) -> list[frozenset[str]]:
        """Return the sets of columns in which no two rows of a table are equal, by its constraints."""
        ...

    def create(self, table: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        """Make a table, maybe with a primary key."""
        ...

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows by the names of their columns. Raises ``Refused`` for rows that the database does not take."""
        ...

    def execute(self, sql: str) -> None:
        """Run a statement."""
        ...

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def rests(self) -> bool:
        """After ``commit``: stay connected, without a transaction. False if it was not committed, or cannot be."""
        ...

    def again(self) -> bool:
        """Begin another transaction of a connection that rests; False if it was lost."""
        ...

    def close(self) -> None:
        """Roll back what is not committed, and let go."""
        ...


def quoted_table(table: str) -> str:
    """Return the name of a table, maybe with its schema before a dot, as SQL has it.

    >>> print(quoted_table("shop.sales"))
    "shop"."sales"
    """
    return ".".join(map(quoted_name, table.split(".")))


def made_temporary(transaction: Transaction, table: str, columns: Sequence[str]) -> str:
    """Make a temporary table without rows, of columns that a table has; return its name in SQL."""
    transaction.execute(
        f"CREATE TEMPORARY TABLE {quoted_name(transaction.temporary.partition('.')[2])} AS "
        f"SELECT {', '.join(columns)} FROM {quoted_table(table)} WHERE 1 = 0"
    )
    return quoted_table(transaction.temporary)


def keyed(table: str, key: Sequence[str]) -> str:
    """Return the statement that gives a table without rows a primary key."""
    return f"ALTER TABLE {quoted_table(table)} ADD PRIMARY KEY ({', '.join(map(quoted_name, key))})"


def undone(database: Database, doing: str, error: BaseException) -> SinkError:
    """Return the error for what a driver raised, without secrets. Raise it ``from None``: its cause may hold some."""
    return SinkError(
        f"Cannot {doing} {database}: {database.words_of(error)}. The transaction was undone. Fix the cause, and run "
        "the same command again: finished work is kept, and nothing is inserted twice."
    )


COMMITS = "headrace_commits"


def make_commits(transaction: Transaction) -> None:
    """Make the table, if there is none."""
    if transaction.columns(COMMITS) is None:
        transaction.execute(
            f"CREATE TABLE IF NOT EXISTS {COMMITS} (run VARCHAR(64) NOT NULL, part VARCHAR(200) NOT NULL, "
            "table_name VARCHAR(200) NOT NULL, rows BIGINT NOT NULL, PRIMARY KEY (run, part))"
        )


def noted_parts(transaction: Transaction, run: str) -> set[str]:
    """Return the names of the parts of a run that were noted."""
    if transaction.columns(COMMITS) is None:
        return set()
    return {str(part) for (part,) in transaction.rows(f"SELECT part FROM {COMMITS} WHERE run = '{run}'")}


def forget(transaction: Transaction, run: str) -> None:
    """Remove what is noted of a run."""
    if transaction.columns(COMMITS) is not None:
        transaction.execute(f"DELETE FROM {COMMITS} WHERE run = '{run}'")


def note(transaction: Transaction, run: str, part: str, table: str, rows: int) -> bool:
    """Note a part, in the transaction that inserts its rows, before it does; False if another one has.

    It waits for a transaction that notes the same part, such as one of a driver that was killed while it committed.
    """
    name = table.replace("'", "''")
    noted = transaction.rows(
        f"INSERT INTO {COMMITS} (run, part, table_name, rows) VALUES ('{run}', '{part}', '{name}', {rows}) "
        "ON CONFLICT DO NOTHING RETURNING rows"
    )
    return bool(noted)
