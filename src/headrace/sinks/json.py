"""Parts as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from headrace.core.files.formats import compressed_suffixes
from headrace.core.files.staged import StagedStream
from headrace.core.ports import Encoder
from headrace.sinks.files import probe_columns
from headrace.sinks.jsontext import encode_object
from headrace.sinks.text import Lined, join, put, unpacked

_ROWS = 8192


@dataclass(frozen=True)
class Json(Lined):
    """One file of JSON lines for each shard: an object for each row, nulls written out.

    NaN and the infinities, which JSON lacks, become null. Times are ISO 8601 with every digit of their unit,
    those with a zone in UTC (``Z``); decimals are strings; durations integers of their unit; tensors nested
    lists; maps with string keys objects. Bytes are refused: JSON has no way to write them that readers share.
    """

    kind: ClassVar[str] = "JSON"
    suffixes = compressed_suffixes("json", "gzip", "zstd")

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for bytes, unions, intervals, and maps whose keys are no strings."""
        probe_columns(schema, self.kind, _try)

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _JsonEncoder(self.compressed(stream), schema.names)

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        return sum(chunk.count(b"\n") for chunk in unpacked(path, described))


class _JsonEncoder:
    """Rows to lines, some thousands at a time so that the text stays small beside the batch."""

    def __init__(self, stream: pa.NativeFile, names: list[str]) -> None:
        self._stream = stream
        self._names = names
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            lines = join(encode_object(self._names, part.columns), "\n")
            put(self._stream, lines)
            self._rows += len(lines)

    def close(self) -> int:
        self._stream.close()
        return self._rows


def _try(schema: pa.Schema) -> None:
    encode_object(schema.names, [pa.nulls(1, column.type) for column in schema])
