"""DuckDB, by its own Arrow streams."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.databases.addresses import Database, quoted
from headrace.core.install import install_hint
from headrace.errors import MissingLibrary, SourceError
from headrace.sources.sql.connections import Column, failed, file_state, inexact, refuse_twice

_INEXACT = re.compile(
    r"\b(UHUGEINT|BIT|BIGNUM|VARINT|UNION|TIME WITH TIME ZONE|TIMETZ|TIME_NS|GEOMETRY|VARIANT)\b"
)
_LOCAL = {
    *("SEQ_SCAN", "DUMMY_SCAN", "EMPTY_RESULT", "COLUMN_DATA_SCAN", "CTE_SCAN", "REC_CTE_SCAN", "DELIM_SCAN")
}


class DuckdbConnection:
    """A connection to a file, read-only, in one transaction."""

    snapshot = ""

    def __init__(self, database: Database) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise MissingLibrary(f"Reading duckdb:// needs duckdb: {install_hint('sql')}.") from error
        self._errors = (duckdb.Error, pa.ArrowException)
        self._database = database
        self._path = database.path
        if not os.path.exists(self._path):
            raise SourceError(f"Cannot read {database}: there is no such file.")
        try:
            self._connection = duckdb.connect(self._path, read_only=True)
            self._connection.execute("SET TimeZone = 'UTC'")
            self.began = self.state()
            self._connection.execute("BEGIN TRANSACTION")
        except self._errors as error:
            raise failed(database, "read", error) from None

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
            Column(name, _plain(field.type), f"q.{quoted(name)}", f"q.{quoted(name)}", _check(kind, name))
            for (name, kind, *_), field in zip(told, schema, strict=True)
        ]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        try:
            table = self._read(sql, 1_000).read_all()
        except self._errors as error:
            raise failed(self._database, "run the query in", error) from None
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def _read(self, sql: str, rows: int) -> pa.RecordBatchReader:
        try:
            relation = self._connection.sql(sql)
            if relation is None:
                raise SourceError("The query gives no rows. It is a SELECT.")
            if hasattr(relation, "to_arrow_reader"):
                return relation.to_arrow_reader(rows)
            return relation.fetch_arrow_reader(rows)
        except self._errors as error:
            raise failed(self._database, "run the query in", error) from None

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
        try:
            for batch in self._read(sql, rows):
                for start in range(0, batch.num_rows, rows):
                    arrays = [_storage(column) for column in batch.slice(start, rows).columns]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except self._errors as error:
            raise failed(self._database, "read the query's rows from", error) from None

    def reads_elsewhere(self, query: str) -> bool:
        """Look at what the plan begins with: tables of this file, or anything else, such as a view of Parquet files.

        The optimizer is off, as it puts what the footers of Parquet files say in place of reading them.
        """
        try:
            self._connection.execute("PRAGMA disable_optimizer")
            told = self._connection.execute(
                f"EXPLAIN (FORMAT json) SELECT * FROM ({query}\n) AS q"
            ).fetchall()
            self._connection.execute("PRAGMA enable_optimizer")
        except self._errors as error:
            raise failed(self._database, "run the query in", error) from None
        return not all(_LOCAL.issuperset(_scans(step)) for step in json.loads(told[0][1]))

    def state(self) -> tuple[int, ...]:
        """Return sizes and times of the file and its log."""
        return file_state(self._path, ".wal")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _scans(step: dict[str, Any]) -> set[str]:
    """Return the names of the steps of a plan that have none before them."""
    return set().union(*map(_scans, step.get("children", ()))) or {step["name"].strip()}


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _check(kind: str, name: str) -> str:
    if kind == "HUGEINT":
        most = "9" * 38  # what a decimal of Arrow holds; a HUGEINT may have a digit more
        return f"q.{quoted(name)} NOT BETWEEN -{most}::HUGEINT AND {most}::HUGEINT"
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"NOT isfinite(q.{quoted(name)})"
    return ""
