"""Parts as files of Arrow's own format; rejected rows are always such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import pyarrow as pa

from headrace.core.arrow.values import one_value
from headrace.core.files import safe_files
from headrace.core.files.staged import StagedStream
from headrace.core.ports import Format


@dataclass(frozen=True)
class Arrow(Format):
    """A file has one dictionary for each column, to which later batches may add; those of row groups differ."""

    kind: ClassVar[str] = "Arrow"
    suffix: ClassVar[str] = "arrow"

    def open(self, stream: StagedStream, schema: pa.Schema) -> ArrowEncoder:
        return ArrowEncoder(stream, schema)

    def rows_back(self, path: Path) -> Iterator[pa.RecordBatch]:
        with pa.BufferReader(safe_files.mapped(path)) as file:
            reader = pa.ipc.open_file(file)
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        with pa.BufferReader(safe_files.mapped(path)) as file:
            reader = pa.ipc.open_file(file)
            return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


class ArrowEncoder:
    """Writes batches at once."""

    def __init__(self, stream: StagedStream | IO[bytes], schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_file(stream, schema, options=options)
        self._last: dict[int, pa.Array] = {}  # column → no rows, with the dictionary as it was written
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for number, column in enumerate(batch.columns):
            if pa.types.is_dictionary(column.type):
                batch = batch.set_column(number, batch.schema.field(number), self._extended(number, column))
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def _extended(self, number: int, column: pa.Array) -> pa.Array:
        """Return a column with the dictionary that was written, and behind it what is new."""
        if number in self._last:
            column = pa.chunked_array([self._last[number], column]).unify_dictionaries().chunk(1)
        elif not len(column.dictionary):  # Arrow adds nothing to one without values
            column = pa.DictionaryArray.from_arrays(
                column.indices, one_value(column.type.value_type), ordered=column.type.ordered
            )
        self._last[number] = column.slice(0, 0)
        return column

    def close(self) -> int:
        self._writer.close()
        return self._rows
