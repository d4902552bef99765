"""PostgreSQL, by its ADBC driver: rows come by COPY in its binary form, as Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.databases.connections import (
    Column,
    Connection,
    Database,
    inexact,
    quoted_name,
    refuse_twice,
)
from headrace.annex.databases.transactions import Transaction, as_sent, keyed, quoted_table, undone
from headrace.core.arrow.plain import plain
from headrace.core.door import install_hint
from headrace.errors import MissingLibrary, SinkError, SourceError

_TIMES = {"date", "timestamp", "timestamptz"}
_PLAIN = {"bool", "int2", "int4", "int8", "float4", "float8", "bytea", *_TIMES}
_ARRAYS = {"_bool", "_int2", "_int4", "_int8", "_float4", "_float8", "_text", "_varchar"}
_TEXTS_READ = {"text", "varchar", "name", "char", "bpchar"}
_VECTORS = {"vector", "halfvec"}  # of pgvector
_AS_TEXT = {"json", "jsonb", "uuid"}
# A later one does not fit into 64 bits of microseconds since 1970.
_LAST = "TIMESTAMP '294247-01-01 00:00:00'"


def _driver(doing: str) -> tuple[Any, Any]:
    """Return the modules of the driver."""
    try:
        import adbc_driver_manager as manager
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise MissingLibrary(
            f"{doing} postgresql:// needs adbc-driver-postgresql: {install_hint('sql')}."
        ) from error
    return manager, dbapi


def _digits(modifier: int) -> tuple[int, int]:
    """Return the precision and the scale of a numeric that declares them."""
    return (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF


class PostgresqlConnection(Connection):
    """A connection in one read-only transaction that sees one state of the database, but for foreign tables."""

    def __init__(self, database: Database, snapshot: str) -> None:
        manager, dbapi = _driver("Reading")
        self.errors = (manager.Error, pa.ArrowException, OSError)
        self.database = database
        with self.asking("connect to"):
            self._connection = dbapi.connect(database.uri)
        try:
            self._run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if snapshot:
                self._run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            self._run("SET LOCAL TimeZone = 'UTC'")
            self.snapshot = snapshot or str(self.rows("SELECT pg_export_snapshot()")[0][0])
        except BaseException:
            self._connection.close()
            raise

    def _run(self, sql: str) -> None:
        with self.asking("begin to read"), self._connection.cursor() as cursor:
            cursor.execute(sql)

    def columns(self, query: str) -> list[Column]:
        """Ask for the names and types of the answer; measure numbers whose scale is not declared."""
        with self.asking("run the query in"), self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM ({query}\n) AS q LIMIT 0")
            schema = cursor.fetch_record_batch().schema
        refuse_twice([(name, "unknown") for name in schema.names], cased=True)
        return [self._column(field, query) for field in schema]

    def _column(self, field: pa.Field, query: str) -> Column:
        value = f"q.{quoted_name(field.name)}"
        about = {key.decode(): each.decode() for key, each in (field.metadata or {}).items()}
        kind = about.get("POSTGRESQL:type") or about.get("ADBC:postgresql:typname") or str(field.type)
        if kind == "numeric":
            decimal = self._decimal(field.name, int(about.get("POSTGRESQL:typmod", -1)), query)
            return Column(field.name, decimal, f"({value})::text", value, f"{value} = 'NaN'")
        if kind in _AS_TEXT:
            return Column(field.name, pa.string(), f"({value})::text", f'({value})::text COLLATE "C"')
        if kind in _TEXTS_READ or pa.types.is_string(field.type):
            return Column(field.name, pa.string(), value, f'({value})::text COLLATE "C"')
        if kind in _PLAIN or kind == "time":
            check = f"NOT isfinite({value})" if kind in _TIMES else ""
            check += f" OR {value} >= {_LAST}" if "timestamp" in kind else ""
            return Column(field.name, field.type, value, value, check)
        # The driver knows those types that it found at first.
        if kind in _VECTORS or kind.startswith("unnamed<oid:"):
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
        value = f"q.{quoted_name(name)}"
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
            precision, scale = _digits(modifier)
        else:
            value = f"q.{quoted_name(name)}"
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
        with self.asking("run the query in"), self._connection.cursor() as cursor:
            cursor.execute(sql)
            table = cursor.fetch_arrow_table()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def bounds(self, column: Column) -> tuple[str, str]:
        """Return the least and the greatest value that Python can hold."""
        low = high = column.order
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
        schema = pa.schema([(column.name, column.type) for column in columns])
        with self.asking("read the query's rows from"), self._connection.cursor() as cursor:
            cursor.execute(sql)
            for batch in cursor.fetch_record_batch():
                for start in range(0, batch.num_rows, rows):
                    part = batch.slice(start, rows)
                    arrays = [_exact(a, f.type) for a, f in zip(part.columns, schema, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._connection.close()


def _exact(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Make numbers of their texts; all else has its type already."""
    storage = plain(column)
    if storage.type.equals(kind):
        return storage
    if not pa.types.is_decimal(kind) and not pa.types.is_fixed_size_list(kind):
        raise SourceError(f"PostgreSQL gave a column of type {storage.type} where {kind} was expected.")
    return storage.cast(kind)


_TEXTS_WRITTEN = {"text", "varchar", "bpchar"}


class PostgresqlTransaction(Transaction):
    """A connection that commits when it is told to."""

    temporary = "pg_temp.headrace_rows_of_parts"

    def __init__(self, database: Database) -> None:
        manager, dbapi = _driver("Writing to")
        self._committed = False
        self.failures = (manager.Error, pa.ArrowException)
        self.refused = (manager.IntegrityError, manager.DataError)
        try:
            self._connection = dbapi.connect(database.uri)
        except self.failures as error:
            raise undone(database, "connect to", error) from None

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return the types that the table has in Arrow; numbers with the digits that are declared."""
        if not (declared := self._declared(table)):
            return None
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {quoted_table(table)} LIMIT 0")
            return {
                each.name: _held(each, *declared[each.name]) for each in cursor.fetch_record_batch().schema
            }

    def _declared(self, table: str) -> dict[str, tuple[str, int]]:
        """Return the type of each column and its modifier, in the database's words; nothing if there is no table."""
        name = quoted_table(table).replace("'", "''")
        sql = (
            "SELECT a.attname::text, t.typname::text, a.atttypmod::int4 FROM pg_attribute a, pg_type t WHERE "
            f"a.attrelid = to_regclass('{name}') AND a.attnum > 0 AND t.oid = a.atttypid"
        )
        return {column: (kind, modifier) for column, kind, modifier in self.rows(sql)}

    def unique(self, table: str) -> list[frozenset[str]]:
        """Ask for indexes that ON CONFLICT can use: of columns, of all rows, and checked at once."""
        name = quoted_table(table).replace("'", "''")
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
        self._ingest(table, _sent_as(schema).empty_table(), "create")
        for each in schema:
            if pt.is_fixed_size_list(each.type):
                kind = f"{self._of_pgvector()}({each.type.list_size})"
                name = quoted_name(each.name)
                self.execute(
                    f"ALTER TABLE {quoted_table(table)} ALTER COLUMN {name} TYPE {kind} USING NULL::{kind}"
                )
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
                "Run CREATE EXTENSION vector in the database, or leave them out with drop_columns."
            )
        return f"{found[0][0]}.vector"

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows by name; vectors as pgvector receives them."""
        sent = _sent_as(schema)
        rows = (_sent(batch, sent) for batch in batches)
        with self.taking_rows():
            self._ingest(table, pa.RecordBatchReader.from_batches(sent, rows), "append")

    def _ingest(self, table: str, rows: Any, mode: str) -> None:
        *schema, name = table.split(".")
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode=mode, db_schema_name=schema[0] if schema else None)

    def execute(self, sql: str) -> None:
        with self.taking_rows(), self._connection.cursor() as cursor:
            cursor.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def commit(self) -> None:
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
        self._connection.close()


def _sent_as(schema: pa.Schema) -> pa.Schema:
    """Return the types in which columns are sent: vectors as bytes."""
    return pa.schema(
        [each.with_type(pa.binary()) if pt.is_fixed_size_list(each.type) else each for each in schema]
    )


def _sent(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [as_sent(each) if pt.is_fixed_size_list(each.type) else each for each in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _held(field: pa.Field, declared: str, modifier: int) -> pa.DataType | None:
    about = {key.decode(): each.decode() for key, each in (field.metadata or {}).items()}
    kind = about.get("POSTGRESQL:type", declared)
    if kind == "numeric":
        digits = int(about.get("POSTGRESQL:typmod", modifier))
        return pa.decimal128(*_digits(digits)) if digits >= 0 else pa.decimal256(76, 38)  # any digits
    if kind in _TEXTS_WRITTEN:
        return pa.string()
    if declared == "vector":
        return pa.list_(pa.float32(), modifier if modifier > 0 else -1)
    rounds = "timestamp" in declared and 0 <= modifier < 6  # less than microseconds: the driver does not say
    return field.type if kind in _PLAIN and not rounds else None
