"""Rows that replace those of a table that have their key: all parts of a run in one statement, in the rows' order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.core.databases.addresses import Database
from headrace.core.databases.addresses import quoted as quoted_name
from headrace.errors import SinkError
from headrace.sinks.sql.transactions import Transaction, made_temporary, quoted


def check_key(
    database: Database, table: str, key: Sequence[str], there: Iterable[str], unique: Sequence[frozenset[str]]
) -> None:
    """Raise ``SinkError`` unless a table that is there has no two rows of one key, by its own word."""
    if frozenset(key) in unique:
        return
    missing = [name for name in key if name not in there]
    if missing:
        raise SinkError(
            f"The table {table} in {database} has no column {missing[0]!r} of key={list(key)}; it has "
            f"{', '.join(list(there)[:20])}."
        )
    others = "; ".join(sorted({", ".join(sorted(names)) for names in unique}))
    columns = ", ".join(map(quoted_name, key))
    raise SinkError(
        f"The table {table} in {database} has no unique constraint on {', '.join(key)}, so several of its rows may "
        "have the same key, and rows cannot be matched by it. "
        f"{f'It has such constraints on: {others}. ' if others else ''}Name the columns of a constraint with key=, "
        f"or make one: CREATE UNIQUE INDEX headrace_key ON {quoted(table)} ({columns})."
    )


class Upsert:
    """Collects the rows of all parts in a temporary table, then merges them into the table that they are for.

    A key of several rows gets the last of them, in the order in which rows were collected.
    """

    def __init__(self, transaction: Transaction, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self._transaction = transaction
        self._table = table
        self._key = ", ".join(map(quoted_name, key))
        self._names = [quoted_name(name) for name in schema.names]
        self._others = [quoted_name(name) for name in schema.names if name not in key]
        self._rows = 0
        place = _free("headrace_place", schema.names)
        self._place = quoted_name(place)
        self._number = quoted_name(_free("headrace_number", schema.names))
        self._schema = schema.append(pa.field(place, pa.int64()))
        columns = [*self._names, f"CAST(0 AS BIGINT) AS {self._place}"]
        self._temporary = made_temporary(transaction, table, columns)

    def collect(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take the next rows."""
        self._transaction.insert(self._transaction.temporary, self._schema, map(self._placed, batches))

    def _placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = pa.array(range(self._rows, self._rows + batch.num_rows), pa.int64())
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays([*batch.columns, places], schema=self._schema)

    def merge(self) -> int:
        """Merge, and return how many rows gave way to a later one of their key."""
        run, names = self._transaction.execute, ", ".join(self._names)
        sql = (
            f"SELECT CAST(count(*) AS BIGINT) FROM (SELECT DISTINCT {self._key} FROM {self._temporary}) AS k"
        )
        again = self._rows - int(self._transaction.rows(sql)[0][0])
        rows = self._temporary
        if again:
            number = f"row_number() OVER (PARTITION BY {self._key} ORDER BY {self._place} DESC)"
            rows = f"(SELECT *, {number} AS {self._number} FROM {rows}) AS r WHERE {self._number} = 1"
        taken = ", ".join(f"{name} = excluded.{name}" for name in self._others)
        run(
            f"INSERT INTO {quoted(self._table)} ({names}) SELECT {names} FROM {rows}{'' if again else ' WHERE true'} "
            f"ORDER BY {self._place} ON CONFLICT ({self._key}) DO {f'UPDATE SET {taken}' if taken else 'NOTHING'}"
        )
        run(f"DROP TABLE {self._temporary}")
        return again


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name for a column that no other has; databases tell them apart without regard to case."""
    others = {other.lower() for other in taken}
    while name in others:
        name += "_"
    return name
