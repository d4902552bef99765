"""Rows as they are staged for a table: in the types of its columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.databases.addresses import Database
from headrace.errors import SinkError
from headrace.sinks.parquet import ParquetEncoder, ParquetSink
from headrace.sinks.sql.vectors import in_files, staged
from headrace.sinks.staged import StagedStream


class StoredEncoder(ParquetEncoder):
    """Brings batches to the types of the table; a value that would change is an error."""

    def __init__(
        self,
        sink: ParquetSink,
        stream: StagedStream,
        schema: pa.Schema,
        database: Database,
        key: Sequence[str],
    ) -> None:
        super().__init__(sink, stream, in_files(schema))
        self._stored = schema
        self._database = database
        self._no_nan = database.scheme == "sqlite"
        self._key = key

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
        super().write(pa.RecordBatch.from_arrays(columns, schema=in_files(self._stored)))
