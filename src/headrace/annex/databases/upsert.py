"""Rows of parts and the table: those that replace rows with their key, and whether all are there still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.databases.addresses import Database, quoted_name
from headrace.annex.databases.transactions import Transaction, made_temporary, quoted_table
from headrace.errors import SinkError


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
        f"or make one: CREATE UNIQUE INDEX headrace_key ON {quoted_table(table)} ({columns})."
    )


class Upsert:
    """Collects the rows of all parts in a temporary table, then merges them into the table that they are for.

    A key of several rows gets the last of them, in the order in which rows were collected. With ``inserts`` False,
    only rows that are there are updated.
    """

    def __init__(
        self,
        transaction: Transaction,
        table: str,
        schema: pa.Schema,
        key: Sequence[str],
        *,
        inserts: bool = True,
    ) -> None:
        self._transaction = transaction
        self._table = table
        self._inserts = inserts
        self._same = " AND ".join(f"u.{name} = r.{name}" for name in map(quoted_name, key))
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

    def merge(self) -> tuple[int, int]:
        """Merge; return how many rows gave way to a later one of their key, and how many keys no row has."""
        run, names = self._transaction.execute, ", ".join(self._names)
        sql = (
            f"SELECT CAST(count(*) AS BIGINT) FROM (SELECT DISTINCT {self._key} FROM {self._temporary}) AS k"
        )
        again = self._rows - int(self._transaction.rows(sql)[0][0])
        rows = self._temporary
        if again:
            number = f"row_number() OVER (PARTITION BY {self._key} ORDER BY {self._place} DESC)"
            rows = f"(SELECT *, {number} AS {self._number} FROM {rows}) AS r WHERE {self._number} = 1"
        table, unknown = quoted_table(self._table), 0
        if self._inserts:
            taken = ", ".join(f"{name} = excluded.{name}" for name in self._others)
            run(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM {rows}{'' if again else ' WHERE true'} "
                f"ORDER BY {self._place} ON CONFLICT ({self._key}) DO {f'UPDATE SET {taken}' if taken else 'NOTHING'}"
            )
        else:
            keys = f"(SELECT DISTINCT {self._key} FROM {self._temporary}) AS r"
            there = f"SELECT 1 FROM {table} AS u WHERE {self._same}"
            sql = f"SELECT CAST(count(*) AS BIGINT) FROM {keys} WHERE NOT EXISTS ({there})"
            unknown = int(self._transaction.rows(sql)[0][0])
            taken = ", ".join(f"{name} = r.{name}" for name in self._others)
            run(f"UPDATE {table} AS u SET {taken} FROM (SELECT * FROM {rows}) AS r WHERE {self._same}")
        run(f"DROP TABLE {self._temporary}")
        return again, unknown


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name for a column that no other has; databases tell them apart without regard to case."""
    others = {other.lower() for other in taken}
    while name in others:
        name += "_"
    return name


_MANY = 2  # times as many rows as ours in the table: then only those that may be ours are compared


class Presence:
    """Collects rows in a temporary table, and counts those that a table has not.

    Rows are compared by the values of their columns, and equal rows are counted: a table that has two of three is
    without one. With ``key``, only that is compared, as others may update what is beside it.
    """

    def __init__(self, transaction: Transaction, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self._transaction = transaction
        self._table = quoted_table(table)
        self._schema = schema
        self._key = list(map(quoted_name, key))
        self._names = list(map(quoted_name, schema.names))
        self._temporary = made_temporary(transaction, table, self._names)

    def collect(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows, in the types of the table."""
        self._transaction.insert(self._transaction.temporary, self._schema, batches)

    def counted(self) -> tuple[int, int]:
        """Return how many rows were collected, or keys, and how many of these the table has not; forget them."""
        found = self._keys() if self._key else self._rows()
        self._transaction.execute(f"DROP TABLE {self._temporary}")
        return found

    def _keys(self) -> tuple[int, int]:
        ours = f"(SELECT DISTINCT {', '.join(self._key)} FROM {self._temporary}) AS ours"
        same = " AND ".join(f"theirs.{name} = ours.{name}" for name in self._key)
        gone = f"NOT EXISTS (SELECT 1 FROM {self._table} AS theirs WHERE {same})"
        return self._number(f"SELECT count(*) FROM {ours}"), self._number(
            f"SELECT count(*) FROM {ours} WHERE {gone}"
        )

    def _rows(self) -> tuple[int, int]:
        total = self._number(f"SELECT count(*) FROM {self._temporary}")
        columns = ", ".join(f"{name} AS h{i}" for i, name in enumerate(self._names))
        by = ", ".join(f"h{i}" for i in range(len(self._names)))
        both = (
            f"SELECT {columns}, 1 AS h FROM {self._temporary} UNION ALL "
            f"SELECT {columns}, -1 FROM {self._table}{self._alike(total)}"
        )
        less = f"SELECT sum(h) AS h FROM ({both}) AS b GROUP BY {by} HAVING sum(h) > 0"
        return total, self._number(f"SELECT coalesce(sum(h), 0) FROM ({less}) AS c")

    def _alike(self, total: int) -> str:
        """Return a condition for rows that may be ours, if the table has many others; "" for all."""
        most = _MANY * total
        if count_up_to(self._transaction, self._table, most + 1) <= most:
            return ""
        plain = [
            name
            for name, kind in zip(self._names, self._schema.types, strict=True)
            if not pt.is_fixed_size_list(kind) and not pt.is_list(kind)
        ]
        counts = ", ".join(f"count({name})" for name in plain)
        found = self._transaction.rows(f"SELECT {counts} FROM {self._temporary}")[0] if plain else ()
        full = ", ".join(name for name, count in zip(plain, found, strict=True) if int(count) == total)
        return f" WHERE ({full}) IN (SELECT {full} FROM {self._temporary})" if full else ""

    def _number(self, sql: str) -> int:
        return int(self._transaction.rows(sql)[0][0])


def count_up_to(transaction: Transaction, table: str, most: int) -> int:
    """Return how many rows a table, by its name in SQL, has, or ``most``, if it has more."""
    sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {most}) AS r"
    return int(transaction.rows(sql)[0][0])
