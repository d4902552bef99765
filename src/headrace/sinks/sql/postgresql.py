"""PostgreSQL, by its ADBC driver: rows go by COPY in its binary form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.databases.addresses import Database
from headrace.core.install import install_hint
from headrace.errors import MissingLibrary
from headrace.sinks.sql.transactions import Refused, failed, keyed, quoted

_TEXTS = {"text", "varchar", "bpchar"}


class PostgresqlTransaction:
    """A connection that commits when it is told to."""

    temporary = "pg_temp.headrace_upsert"

    def __init__(self, database: Database) -> None:
        try:
            import adbc_driver_manager as manager
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise MissingLibrary(
                f"Writing to postgresql:// needs adbc-driver-postgresql: {install_hint('sql')}."
            ) from error
        self.failures = (manager.Error, pa.ArrowException)
        self._refused = (manager.IntegrityError, manager.DataError)
        try:
            self._connection = dbapi.connect(database.uri)
        except self.failures as error:
            raise failed(database, "connect to", error) from None

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return the types that the table has in Arrow; numbers with the digits that are declared."""
        name = quoted(table).replace("'", "''")
        if not self.rows(f"SELECT to_regclass('{name}')::text AS t WHERE to_regclass('{name}') IS NOT NULL"):
            return None
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {quoted(table)} LIMIT 0")
            return {field.name: _held(field) for field in cursor.fetch_record_batch().schema}

    def unique(self, table: str) -> list[frozenset[str]]:
        """Ask for indexes that ON CONFLICT can use: of columns, of all rows, and checked at once."""
        name = quoted(table).replace("'", "''")
        found: dict[tuple[int, bool], set[str]] = {}
        for index, at_once, column in self.rows(
            "SELECT i.indexrelid::int8, i.indimmediate, a.attname::text FROM pg_index i, pg_attribute a, "
            "LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place) "
            f"WHERE i.indrelid = to_regclass('{name}') AND i.indisunique AND i.indisvalid "
            "AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts "
            "AND a.attrelid = i.indrelid AND a.attnum = k.attnum"
        ):
            found.setdefault((index, at_once), set()).add(column)
        # ON CONFLICT fails beside these.
        deferred = [names for (_, at_once), names in found.items() if not at_once]
        return [frozenset(names) for names in found.values() if names not in deferred]

    def create(self, table: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        """Make a table of the types that the driver gives these."""
        self._ingest(table, schema.empty_table(), "create")
        if key:
            self.execute(keyed(table, key))

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows by name."""
        try:
            self._ingest(table, pa.RecordBatchReader.from_batches(schema, batches), "append")
        except self._refused as error:
            raise Refused(str(error)) from None

    def _ingest(self, table: str, rows: Any, mode: str) -> None:
        *schema, name = table.split(".")
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode=mode, db_schema_name=schema[0] if schema else None)

    def execute(self, sql: str) -> None:
        """Run a statement."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
        except self._refused as error:
            raise Refused(str(error)) from None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def commit(self) -> None:
        """Commit."""
        self._connection.commit()

    def close(self) -> None:
        """Roll back what is not committed."""
        self._connection.close()


def _held(field: pa.Field) -> pa.DataType | None:
    about = {key.decode(): each.decode() for key, each in (field.metadata or {}).items()}
    kind = about.get("POSTGRESQL:type", "")
    if kind == "numeric":
        modifier = int(about.get("POSTGRESQL:typmod", -1))
        if modifier < 0:
            return pa.decimal256(76, 38)  # any digits
        return pa.decimal128((modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF)
    if kind in _TEXTS:
        return pa.string()
    plain = {"bool", "int2", "int4", "int8", "float4", "float8", "bytea", "date", "timestamp", "timestamptz"}
    return field.type if kind in plain else None
