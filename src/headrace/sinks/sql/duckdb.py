"""DuckDB, which takes Arrow as it is."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.databases.addresses import Database
from headrace.core.install import install_hint
from headrace.errors import MissingLibrary
from headrace.sinks.sql.transactions import Refused, failed, keyed, quoted

_WAIT = 10.0  # seconds, for another process to close the file
_MEMBERS = re.compile(r"'([^']*)'|([^,\[\] ]+)")  # of an index, as DuckDB tells them: ['"a b"', c]


class DuckdbTransaction:
    """A connection to a file, which is made if there is none."""

    temporary = "temp.headrace_rows_of_parts"
    is_first = True

    def __init__(self, database: Database) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise MissingLibrary(f"Writing to duckdb:// needs duckdb: {install_hint('sql')}.") from error
        self.failures = (duckdb.Error,)
        self._refused = (duckdb.ConstraintException, duckdb.ConversionException, duckdb.DataError)
        try:
            self._connection = _connected(database.path)
            self._connection.execute("BEGIN TRANSACTION")
        except duckdb.Error as error:
            raise failed(database, "write to", error) from None

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return the types that the table has in Arrow."""
        *schema, name = table.split(".")
        place = schema[0] if schema else "main"
        where = f"lower(table_name) = lower('{name}') AND lower(table_schema) = lower('{place}')"
        if not self.rows(f"SELECT 1 FROM information_schema.tables WHERE {where}"):
            return None
        relation = self._connection.sql(f"SELECT * FROM {quoted(table)} LIMIT 0")
        read = (
            relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader
        )
        return {field.name: field.type for field in read(1).schema}

    def unique(self, table: str) -> list[frozenset[str]]:
        """Ask for constraints, and for unique indexes, whose columns are told as a text."""
        *schema, name = table.split(".")
        place = schema[0] if schema else "main"
        where = f"lower(table_name) = lower('{name}') AND lower(schema_name) = lower('{place}')"
        kinds = "constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
        found = [
            frozenset(names)
            for (names,) in self.rows(
                f"SELECT constraint_column_names FROM duckdb_constraints() WHERE {where} AND {kinds}"
            )
        ]
        for (told,) in self.rows(f"SELECT expressions FROM duckdb_indexes() WHERE {where} AND is_unique"):
            found.append(frozenset(_column(quoted or plain) for quoted, plain in _MEMBERS.findall(told)))
        return found

    def create(self, table: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        """Make a table of the types that DuckDB gives these."""
        self._insert(
            f"CREATE TABLE {quoted(table)} AS SELECT * FROM headrace_rows LIMIT 0", schema.empty_table()
        )
        if key:
            self.execute(keyed(table, key))

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows by name."""
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        try:
            self._insert(f"INSERT INTO {quoted(table)} BY NAME SELECT * FROM headrace_rows", reader)
        except self._refused as error:
            raise Refused(str(error)) from None

    def _insert(self, sql: str, rows: Any) -> None:
        self._connection.register("headrace_rows", rows)
        try:
            self._connection.execute(sql)
        finally:
            with contextlib.suppress(*self.failures):  # it would hide the error of a transaction that failed
                self._connection.unregister("headrace_rows")

    def execute(self, sql: str) -> None:
        """Run a statement."""
        try:
            self._connection.execute(sql)
        except self._refused as error:
            raise Refused(str(error)) from None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        found: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        return found

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


def _column(told: str) -> str:
    """Return the name of a column; an expression stays what it is, and is no column's name."""
    return told[1:-1].replace('""', '"') if told.startswith('"') else told


def _connected(path: str) -> Any:
    """Connect; wait a moment for another process that has the file open."""
    import duckdb

    last = time.monotonic() + _WAIT
    while True:
        try:
            return duckdb.connect(path)
        except duckdb.IOException as error:
            if "lock" not in str(error) or time.monotonic() > last:
                raise
        time.sleep(0.05)
