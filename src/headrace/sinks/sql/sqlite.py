"""SQLite, by Python's own module."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.databases.addresses import Database
from headrace.core.databases.addresses import quoted as quoted_name
from headrace.sinks.sql.transactions import Refused, failed, quoted

_WAIT = 300.0  # seconds, for others that read or write
_DECLARED = {pa.float32(): "REAL", pa.float64(): "REAL", pa.string(): "TEXT", pa.binary(): "BLOB"}


class SqliteTransaction:
    """A connection to a file, which is made if there is none."""

    failures = (sqlite3.Error,)
    temporary = "temp.headrace_rows_of_parts"
    is_first = True

    def __init__(self, database: Database) -> None:
        try:
            self._connection = sqlite3.connect(database.path, isolation_level=None, timeout=_WAIT)
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise failed(database, "write to", error) from None

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return types by SQLite's rules for declared ones: a column converts what is inserted by these, too."""
        found = self._connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        return {name: _held(kind.upper()) for _, name, kind, *_ in found} or None

    def unique(self, table: str) -> list[frozenset[str]]:
        """Ask for indexes of all rows, and for the primary key, which may be the number of the row."""
        run = self._connection.execute
        columns = run(f"PRAGMA table_info({quoted(table)})").fetchall()
        found = [{name for _, name, _, _, _, place in columns if place}]
        for _, index, is_unique, _, partial in run(f"PRAGMA index_list({quoted(table)})").fetchall():
            if is_unique and not partial:
                found.append({row[2] for row in run(f"PRAGMA index_info({quoted_name(index)})").fetchall()})
        return [frozenset(names) for names in found if names and None not in names]

    def create(self, table: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        """Make a table of INTEGER, REAL, TEXT and BLOB."""
        columns = [f"{quoted_name(f.name)} {_DECLARED.get(f.type, 'INTEGER')}" for f in schema]
        if key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted_name, key))})")
        self._connection.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)})")

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows as Python has them."""
        names = ", ".join(quoted_name(name) for name in schema.names)
        marks = ", ".join("?" * len(schema))
        sql = f"INSERT INTO {quoted(table)} ({names}) VALUES ({marks})"
        try:
            for batch in batches:
                columns = [column.to_pylist() for column in batch.columns]
                self._connection.executemany(sql, zip(*columns, strict=True))
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise Refused(str(error)) from None

    def execute(self, sql: str) -> None:
        """Run a statement."""
        try:
            self._connection.execute(sql)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise Refused(str(error)) from None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        return self._connection.execute(sql).fetchall()

    def commit(self) -> None:
        """Commit."""
        self._connection.execute("COMMIT")

    def rests(self) -> bool:
        """Others may wait for the file."""
        return False

    def again(self) -> bool:
        """It never rests."""
        return False

    def close(self) -> None:
        """Roll back what is not committed."""
        self._connection.close()


def _held(declared: str) -> pa.DataType | None:
    for parts, kind in (
        (("INT", "BOOL"), pa.int64()),
        (("CHAR", "CLOB", "TEXT"), pa.string()),
        (("BLOB",), pa.binary()),
        (("REAL", "FLOA", "DOUB"), pa.float64()),
    ):
        if any(part in declared for part in parts):
            return kind
    return None
