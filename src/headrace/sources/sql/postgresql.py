"""PostgreSQL, by its ADBC driver: rows come by COPY in its binary form, as Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.databases.addresses import Database, quoted
from headrace.core.install import install_hint
from headrace.errors import MissingLibrary, SourceError
from headrace.sources.sql.connections import Column, failed, inexact, refuse_twice

_PLAIN = {
    *(
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "bytea",
        "date",
        "time",
        "timestamp",
        "timestamptz",
    ),
}
_ARRAYS = {"_bool", "_int2", "_int4", "_int8", "_float4", "_float8", "_text", "_varchar"}
_TEXTS = {"text", "varchar", "name", "char", "bpchar"}
_VECTORS = {"vector", "halfvec"}  # of pgvector
_AS_TEXT = {"json", "jsonb", "uuid"}
# A later one does not fit into 64 bits of microseconds since 1970.
_LAST = "TIMESTAMP '294247-01-01 00:00:00'"


class PostgresqlConnection:
    """A connection in one read-only transaction that sees one state of the database."""

    def __init__(self, database: Database, snapshot: str) -> None:
        try:
            from adbc_driver_manager import Error
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise MissingLibrary(
                f"Reading postgresql:// needs adbc-driver-postgresql: {install_hint('sql')}."
            ) from error
        self._errors = (Error, pa.ArrowException, OSError)
        self._database = database
        try:
            self._connection = dbapi.connect(database.uri)
        except self._errors as error:
            raise failed(database, "connect to", error) from None
        try:
            self._run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if snapshot:
                self._run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            self._run("SET LOCAL TimeZone = 'UTC'")
            self.began: tuple[int, ...] = ()
            self.snapshot = snapshot or str(self.rows("SELECT pg_export_snapshot()")[0][0])
        except BaseException:
            self._connection.close()
            raise

    def _run(self, sql: str) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
        except self._errors as error:
            raise failed(self._database, "begin to read", error) from None

    def columns(self, query: str) -> list[Column]:
        """Ask for the names and types of the answer; measure numbers whose scale is not declared."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM ({query}\n) AS q LIMIT 0")
                schema = cursor.fetch_record_batch().schema
        except self._errors as error:
            raise failed(self._database, "run the query in", error) from None
        refuse_twice([(name, "unknown") for name in schema.names], cased=True)
        return [self._column(field, query) for field in schema]

    def _column(self, field: pa.Field, query: str) -> Column:
        value = f"q.{quoted(field.name)}"
        about = {key.decode(): each.decode() for key, each in (field.metadata or {}).items()}
        kind = about.get("POSTGRESQL:type") or about.get("ADBC:postgresql:typname") or str(field.type)
        if kind == "numeric":
            decimal = self._decimal(field.name, int(about.get("POSTGRESQL:typmod", -1)), query)
            return Column(field.name, decimal, f"({value})::text", value, f"{value} = 'NaN'")
        if kind in _AS_TEXT:
            return Column(field.name, pa.string(), f"({value})::text", f'({value})::text COLLATE "C"')
        if kind in _TEXTS or pa.types.is_string(field.type):
            return Column(field.name, pa.string(), value, f'({value})::text COLLATE "C"')
        if kind in _PLAIN:
            check = f"NOT isfinite({value})" if kind in ("date", "timestamp", "timestamptz") else ""
            check += f" OR {value} >= {_LAST}" if "timestamp" in kind else ""
            return Column(field.name, field.type, value, value, check)
        if kind in _VECTORS or kind.startswith(
            "unnamed<oid:"
        ):  # the driver knows those that it found at first
            found = self._of_pgvector(field.name, query)
            if found is not None:
                return found
        if kind in _ARRAYS:
            return Column(field.name, field.type, value, value, f"array_ndims({value}) > 1")
        raise inexact(
            field.name,
            kind,
            f"which has no exact Arrow type. Cast it in the query, such as {field.name}::text.",
        )

    def _of_pgvector(self, name: str, query: str) -> Column | None:
        """Return a column of vectors, whose sizes are looked at; None for a type that is not pgvector's."""
        value = f"q.{quoted(name)}"
        told = self.rows(
            "SELECT t.typname::text, quote_ident(n.nspname) FROM pg_type t JOIN pg_namespace n "
            f"ON n.oid = t.typnamespace WHERE t.oid = pg_typeof((SELECT {value} FROM ({query}\n) AS q LIMIT 0))::oid"
        )
        if not told or told[0][0] not in _VECTORS:
            return None
        size = f"{told[0][1]}.vector_dims({value})"
        least, most = self.rows(f"SELECT min({size}), max({size}) FROM ({query}\n) AS q")[0]
        vectors = pa.list_(pa.float32(), least) if least and least == most else pa.list_(pa.float32())
        return Column(name, vectors, f"({value})::real[]", value)

    def _decimal(self, name: str, modifier: int, query: str) -> pa.DataType:
        if modifier >= 0:
            precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
        else:
            value = f"q.{quoted(name)}"
            sql = (
                f"SELECT coalesce(max(scale({value})), 0)::int8, "
                f"coalesce(max(length(trunc(abs({value}))::text)), 1)::int8 FROM ({query}\n) AS q "
                f"WHERE {value} < 'Infinity' AND {value} > '-Infinity'"
            )
            scale, digits = self.rows(sql)[0]
            precision = scale + digits
        if scale > precision or precision > 76:
            raise inexact(
                name, f"numeric of {precision} digits", "more than 76. Cast it in the query, such as to text."
            )
        return pa.decimal128(38, scale) if precision <= 38 else pa.decimal256(76, scale)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
                table = cursor.fetch_arrow_table()
        except self._errors as error:
            raise failed(self._database, "run the query in", error) from None
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def bounds(self, column: Column) -> tuple[str, str]:
        """Return the least and the greatest value that Python can hold."""
        low = high = re.sub(r"^\((.*)\)::text$", r"\1", column.value)
        if pa.types.is_floating(column.type):
            low = high = f"CASE WHEN {low} < 'Infinity' AND {low} > '-Infinity' THEN {low}::float8 END"
        elif pa.types.is_decimal(column.type):
            low = high = f"({low})::float8"
        elif pa.types.is_date(column.type):
            return f"greatest(min({low}), DATE '0001-01-02')", f"least(max({high}), DATE '9999-12-30')"
        elif pa.types.is_timestamp(column.type):
            kind = "TIMESTAMPTZ" if column.type.tz else "TIMESTAMP"
            return f"greatest(min({low}), {kind} '0001-01-02')", f"least(max({high}), {kind} '9999-12-30')"
        return f"min({low})", f"max({high})"

    def checksum(self, columns: Sequence[Column]) -> str:
        """Return the sum of hashes of the rows as texts."""
        return "sum(hashtextextended(q::text, 0)::numeric)::text"

    def batches(self, sql: str, columns: Sequence[Column], rows: int) -> Iterator[pa.RecordBatch]:
        """Stream the answer."""
        schema = pa.schema([(column.name, column.type) for column in columns])
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
                for batch in cursor.fetch_record_batch():
                    for start in range(0, batch.num_rows, rows):
                        part = batch.slice(start, rows)
                        arrays = [_exact(a, f.type) for a, f in zip(part.columns, schema, strict=True)]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except self._errors as error:
            raise failed(self._database, "read the query's rows from", error) from None

    def reads_elsewhere(self, query: str) -> bool:
        """The snapshot is trusted; foreign tables, which are outside of it, are not told from others."""
        return False

    def state(self) -> tuple[int, ...]:
        """Nothing can change in a snapshot."""
        return ()

    def close(self) -> None:
        """End the transaction."""
        self._connection.close()


def _exact(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Make numbers of their texts; all else has its type already."""
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    if storage.type.equals(kind):
        return storage
    if not pa.types.is_decimal(kind) and not pa.types.is_fixed_size_list(kind):
        raise SourceError(f"PostgreSQL gave a column of type {storage.type} where {kind} was expected.")
    return storage.cast(kind)
