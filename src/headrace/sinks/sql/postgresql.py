"""PostgreSQL, by its ADBC driver: rows go by COPY in its binary form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.core.databases.addresses import Database
from headrace.core.databases.addresses import quoted as quoted_name
from headrace.core.install import install_hint
from headrace.errors import MissingLibrary, SinkError
from headrace.sinks.sql.transactions import Refused, failed, keyed, quoted
from headrace.sinks.sql.vectors import as_sent

_TEXTS = {"text", "varchar", "bpchar"}
_LIST = pa.list_(pa.float32())


class PostgresqlTransaction:
    """A connection that commits when it is told to."""

    temporary = "pg_temp.headrace_rows_of_parts"

    def __init__(self, database: Database) -> None:
        try:
            import adbc_driver_manager as manager
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise MissingLibrary(
                f"Writing to postgresql:// needs adbc-driver-postgresql: {install_hint('sql')}."
            ) from error
        self.is_first = True
        self._committed = False
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
            found = {field.name: _held(field) for field in cursor.fetch_record_batch().schema}
        if any(kind is not None and pt.is_timestamp(kind) for kind in found.values()):
            found.update(dict.fromkeys(self._rounding(name)))
        return {**found, **self._vectors(table)} if None in found.values() else found

    def _rounding(self, name: str) -> list[str]:
        """Return the columns that keep less than microseconds, as timestamp(0): the driver does not say."""
        found = self.rows(
            f"SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass('{name}') AND attnum > 0 AND "
            "atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype) AND atttypmod BETWEEN 0 AND 5"
        )
        return [column for (column,) in found]

    def _vectors(self, table: str) -> dict[str, pa.DataType | None]:
        """Return the columns of pgvector's type, with the number of their numbers, or of any."""
        name = quoted(table).replace("'", "''")
        sql = (
            "SELECT a.attname::text, a.atttypmod::int4 FROM pg_attribute a, pg_type t WHERE a.attnum > 0 AND "
            f"a.attrelid = to_regclass('{name}') AND t.oid = a.atttypid AND t.typname = 'vector'"
        )
        return {column: _vector(size) for column, size in self.rows(sql)}

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
        lists = [each if not pt.is_fixed_size_list(each.type) else each.with_type(_LIST) for each in schema]
        self._ingest(table, pa.schema(lists).empty_table(), "create")
        for each in schema:
            if pt.is_fixed_size_list(each.type):
                changed = (
                    f"ALTER COLUMN {quoted_name(each.name)} TYPE {self._of_pgvector()}({each.type.list_size})"
                )
                self.execute(f"ALTER TABLE {quoted(table)} {changed}")
        if key:
            self.execute(keyed(table, key))

    def _of_pgvector(self) -> str:
        found = self.rows(
            "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
            "WHERE e.extname = 'vector'"
        )
        if not found:
            raise SinkError(
                "The rows have vectors, and the database has no type for them: the extension pgvector is not there. "
                "Run CREATE EXTENSION vector in the database; or make the table with a column real[]."
            )
        return f"{found[0][0]}.vector"

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows by name; vectors as pgvector receives them, or as lists."""
        if any(pt.is_fixed_size_list(kind) for kind in schema.types):
            vectors = self._vectors(table)
            sent = pa.schema(
                [
                    each.with_type(pa.binary() if each.name in vectors else _LIST)
                    if pt.is_fixed_size_list(each.type)
                    else each
                    for each in schema
                ]
            )
            batches, schema = (_sent(batch, sent) for batch in batches), sent
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
        self._committed = True

    def rests(self) -> bool:
        """After a commit the driver begins no transaction before the next statement."""
        self.is_first &= not self._committed
        return self._committed

    def again(self) -> bool:
        """Begin another transaction; False if the server has closed the connection."""
        self._committed = False
        try:
            self.rows("SELECT 1")
        except self.failures:
            return False
        return True

    def close(self) -> None:
        """Roll back what is not committed."""
        self._connection.close()


def _vector(size: int) -> pa.DataType:
    return pa.list_(pa.float32(), size) if size > 0 else _LIST


def _sent(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        as_sent(column)
        if pt.is_binary(f.type) and pt.is_fixed_size_list(column.type)
        else column.cast(f.type)
        for column, f in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
    if kind == "_float4":
        return _LIST
    plain = {"bool", "int2", "int4", "int8", "float4", "float8", "bytea", "date", "timestamp", "timestamptz"}
    return field.type if kind in plain else None
