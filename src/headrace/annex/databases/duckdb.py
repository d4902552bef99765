"""DuckDB, by its own Arrow streams."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.annex.databases.connections import (
    Column,
    Connection,
    Database,
    file_of,
    file_state,
    inexact,
    quoted_name,
    refuse_twice,
)
from headrace.annex.databases.transactions import FileTransaction, keyed, quoted_table, undone
from headrace.core.arrow.plain import plain
from headrace.core.door import install_hint
from headrace.errors import MissingLibrary, SourceError

_INEXACT = re.compile(
    r"\b(UHUGEINT|BIT|BIGNUM|VARINT|UNION|TIME WITH TIME ZONE|TIMETZ|TIME_NS|GEOMETRY|VARIANT)\b"
)
_LOCAL = {
    *("SEQ_SCAN", "DUMMY_SCAN", "EMPTY_RESULT", "COLUMN_DATA_SCAN", "CTE_SCAN", "REC_CTE_SCAN", "DELIM_SCAN")
}


class DuckdbConnection(Connection):
    """A connection to a file, read-only, in one transaction."""

    def __init__(self, database: Database, snapshot: str = "") -> None:
        duckdb = _library("Reading")
        self.errors = (duckdb.Error, pa.ArrowException)
        self.database = database
        self._path = file_of(database)
        with self.asking("read"):
            self._connection = duckdb.connect(self._path, read_only=True)
            self._connection.execute("SET TimeZone = 'UTC'")
            self.began = self.state()
            self._connection.execute("BEGIN TRANSACTION")

    def columns(self, query: str) -> list[Column]:
        """Ask for the names and types of the answer."""
        told = self.rows(f"DESCRIBE {query}")
        refuse_twice([(name, kind) for name, kind, *_ in told], cased=False)
        for name, kind, *_ in told:
            if _INEXACT.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", kind)):
                raise inexact(
                    name,
                    kind,
                    f"which has no Arrow type. Cast it in the query, such as CAST({name} AS VARCHAR).",
                )
        schema = self._read(f"SELECT * FROM ({query}\n) AS q LIMIT 0", 1).schema
        return [
            Column(
                name,
                _plain(field.type),
                f"q.{quoted_name(name)}",
                f"q.{quoted_name(name)}",
                _check(kind, name),
            )
            for (name, kind, *_), field in zip(told, schema, strict=True)
        ]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        with self.asking("run the query in"):
            table = self._read(sql, 1_000).read_all()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def _read(self, sql: str, rows: int) -> pa.RecordBatchReader:
        with self.asking("run the query in"):
            relation = self._connection.sql(sql)
            if relation is None:
                raise SourceError("The query gives no rows. It is a SELECT.")
            return _reader(relation, rows)

    def bounds(self, column: Column) -> tuple[str, str]:
        """Return the least and the greatest value that Python can hold."""
        name = column.value
        if pa.types.is_floating(column.type):
            name = f"CASE WHEN isfinite({name}) THEN {name}::DOUBLE END"
        elif pa.types.is_date(column.type):
            return f"greatest(min({name}), DATE '0001-01-02')", f"least(max({name}), DATE '9999-12-30')"
        elif pa.types.is_timestamp(column.type):
            kind = "TIMESTAMPTZ" if column.type.tz else "TIMESTAMP"
            return (
                f"greatest(min({name}::{kind}), {kind} '0001-01-02 00:00:00')",
                f"least(max({name}::{kind}), {kind} '9999-12-30 00:00:00')",
            )
        return f"min({name})", f"max({name})"

    def checksum(self, columns: Sequence[Column]) -> str:
        """Return the sum of the rows' hashes."""
        return "CAST(sum(CAST(hash(q) AS HUGEINT)) AS VARCHAR)"

    def batches(self, sql: str, columns: Sequence[Column], rows: int) -> Iterator[pa.RecordBatch]:
        """Stream the answer."""
        schema = pa.schema([(column.name, column.type) for column in columns])
        with self.asking("read the query's rows from"):
            for batch in self._read(sql, rows):
                for start in range(0, batch.num_rows, rows):
                    arrays = [plain(column) for column in batch.slice(start, rows).columns]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def reads_elsewhere(self, query: str) -> bool:
        """Look at what the plan begins with: tables of this file, or anything else, such as a view of Parquet files.

        The optimizer is off, as it puts what the footers of Parquet files say in place of reading them.
        """
        with self.asking("run the query in"):
            self._connection.execute("PRAGMA disable_optimizer")
            told = self._connection.execute(
                f"EXPLAIN (FORMAT json) SELECT * FROM ({query}\n) AS q"
            ).fetchall()
            self._connection.execute("PRAGMA enable_optimizer")
        return not all(_LOCAL.issuperset(_scans(step)) for step in json.loads(told[0][1]))

    def state(self) -> tuple[int, ...]:
        """Return sizes and times of the file and its log."""
        return file_state(self._path, ".wal")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _library(doing: str) -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingLibrary(f"{doing} duckdb:// needs duckdb: {install_hint('sql')}.") from error
    return duckdb


def _reader(relation: Any, rows: int) -> pa.RecordBatchReader:
    """Return the rows of an answer; older versions of the library have another name for that."""
    read = relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader
    return read(rows)


def _scans(step: dict[str, Any]) -> set[str]:
    """Return the names of the steps of a plan that have none before them."""
    return set().union(*map(_scans, step.get("children", ()))) or {step["name"].strip()}


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _check(kind: str, name: str) -> str:
    if kind == "HUGEINT":
        most = "9" * 38  # what a decimal of Arrow holds; a HUGEINT may have a digit more
        return f"q.{quoted_name(name)} NOT BETWEEN -{most}::HUGEINT AND {most}::HUGEINT"
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"NOT isfinite(q.{quoted_name(name)})"
    return ""


_WAIT = 10.0  # seconds, for another process to close the file
_MEMBERS = re.compile(r"'([^']*)'|([^,\[\] ]+)")  # of an index, as DuckDB tells them: ['"a b"', c]


class DuckdbTransaction(FileTransaction):
    """A connection to a file, which is made if there is none."""

    temporary = "temp.headrace_rows_of_parts"

    def __init__(self, database: Database) -> None:
        duckdb = _library("Writing to")
        self.failures = (duckdb.Error,)
        self.refused = (duckdb.ConstraintException, duckdb.ConversionException, duckdb.DataError)
        try:
            self._connection = _connected(database.path)
            self._connection.execute("BEGIN TRANSACTION")
        except duckdb.Error as error:
            raise undone(database, "write to", error) from None

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return the types that the table has in Arrow."""
        *schema, name = table.split(".")
        place = schema[0] if schema else "main"
        where = f"lower(table_name) = lower('{name}') AND lower(table_schema) = lower('{place}')"
        if not self.rows(f"SELECT 1 FROM information_schema.tables WHERE {where}"):
            return None
        relation = self._connection.sql(f"SELECT * FROM {quoted_table(table)} LIMIT 0")
        return {field.name: field.type for field in _reader(relation, 1).schema}

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
            f"CREATE TABLE {quoted_table(table)} AS SELECT * FROM headrace_rows LIMIT 0", schema.empty_table()
        )
        if key:
            self.execute(keyed(table, key))

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows by name."""
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        with self.taking_rows():
            self._insert(f"INSERT INTO {quoted_table(table)} BY NAME SELECT * FROM headrace_rows", reader)

    def _insert(self, sql: str, rows: Any) -> None:
        self._connection.register("headrace_rows", rows)
        try:
            self._connection.execute(sql)
        finally:
            with contextlib.suppress(*self.failures):  # it would hide the error of a transaction that failed
                self._connection.unregister("headrace_rows")


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
