"""Rows as they are staged for a table: in the types of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.databases.addresses import Database
from headrace.core.files.staged import StagedStream
from headrace.core.ports import Encoder, Format
from headrace.errors import SinkError
from headrace.sinks.parquet import Parquet
from headrace.sinks.sql.types import is_plain, stored
from headrace.sinks.sql.vectors import in_files, staged


@dataclass(frozen=True)
class StoredFormat(Format):
    """``inner`` with rows in the types in which they are inserted."""

    inner: Format
    database: Database
    key: Sequence[str]

    kind: ClassVar[str] = "table"
    suffix: ClassVar[str] = Parquet.suffix

    def options(self) -> dict[str, Any]:
        return self.inner.options()

    def why_not_joined(self) -> str:
        """Nothing is copied from files into a table."""
        return "the rows go to a table"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that no table holds."""
        self.inner.check_schema(in_files(stored_schema(schema, self.database)))

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        schema = stored_schema(schema, self.database)
        return StoredEncoder(self.inner.open(stream, in_files(schema)), schema, self.database, self.key)


class StoredEncoder:
    """Brings batches to the types of the table before they are encoded; a value that would change is an error."""

    def __init__(self, encoder: Encoder, schema: pa.Schema, database: Database, key: Sequence[str]) -> None:
        self._encoder = encoder
        self._stored = schema
        self._database = database
        self._no_nan = database.scheme == "sqlite"
        self._key = key
        self.close = encoder.close

    def write(self, batch: pa.RecordBatch) -> None:
        """Cast, and refuse nulls in a key, and NaN where the database would make a null of it."""
        columns = [
            staged(column, f.name, self._database)
            if pa.types.is_fixed_size_list(f.type)
            else column.cast(f.type)
            for column, f in zip(batch.columns, self._stored, strict=True)
        ]
        for column, about in zip(columns, self._stored, strict=True):
            if about.name in self._key and column.null_count:
                raise SinkError(
                    f"The key column {about.name!r} has nulls, and a row without a key matches no row. Drop such "
                    "rows, or give them a key in a step."
                )
            if self._no_nan and pa.types.is_floating(about.type) and pc.any(pc.is_nan(column)).as_py():
                raise SinkError(
                    f"The column {about.name!r} holds NaN, and SQLite would store a null instead. Replace it with a "
                    "number or a null in a step."
                )
        self._encoder.write(pa.RecordBatch.from_arrays(columns, schema=in_files(self._stored)))


def stored_schema(schema: pa.Schema, database: Database) -> pa.Schema:
    """Return the columns in the types in which they are inserted; raise ``SinkError`` for one that no table holds."""
    found = []
    for column in schema:
        kind = stored(column.type)
        lite = database.scheme == "sqlite"
        if kind is None or (lite and not is_plain(kind)):
            raise SinkError(
                f"The column {column.name!r} is of type {column.type}, which cannot be written to a "
                f"table{' of SQLite, which has no such type' if kind is not None else ''}. Convert it in a step "
                "to numbers, booleans, texts, bytes, dates, times or float32 vectors of one length; or leave it "
                "out with drop_columns."
            )
        found.append(pa.field(column.name, kind))
    return pa.schema(found)
