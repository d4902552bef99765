"""Whether the rows of parts are in a table still, whatever others have added to it: the database compares them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from headrace.core.databases.addresses import quoted as quoted_name
from headrace.sinks.sql.transactions import Transaction, made_temporary, quoted

_MANY = 2  # times as many rows as ours in the table: then only those that may be ours are compared


class Presence:
    """Collects rows in a temporary table, and counts those that a table has not.

    Rows are compared by the values of their columns, and equal rows are counted: a table that has two of three is
    without one. With ``key``, only that is compared, as others may update what is beside it.
    """

    def __init__(self, transaction: Transaction, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self._transaction = transaction
        self._table = quoted(table)
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
