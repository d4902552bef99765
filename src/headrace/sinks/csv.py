"""Parts as CSV files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from headrace.core.files.formats import compressed_suffixes
from headrace.core.files.staged import StagedStream
from headrace.core.ports import Encoder
from headrace.errors import ArgumentError
from headrace.sinks.files import cannot_hold, probe_columns
from headrace.sinks.text import TEXT, Lined, fill, join, put, unpacked

_FORMULA = re.compile(r"^([=+\-@\t\r\n＝＋－＠])")
"""Beginnings of texts that spreadsheets read as formulas, by OWASP's page on CSV injection."""


@dataclass(frozen=True)
class Csv(Lined):
    """One CSV file for each shard, each with a header of its own.

    Text is quoted and everything else bare, so that null (nothing) and the empty string (``""``) differ.
    Times are ISO 8601, those with a zone carry their offset; decimals keep every digit, floats the fewest
    that give them back; durations are integers of their unit. ``nan`` stands for NaN, which pyarrow reads as
    null. Columns of lists, structs or bytes are refused. ``escape_formulas`` puts an apostrophe before text, names
    of columns included, that a spreadsheet would take for a formula.
    """

    delimiter: str = ","
    header: bool = True
    escape_formulas: bool = False

    kind: ClassVar[str] = "CSV"
    quotes: ClassVar[bool] = True
    suffixes = compressed_suffixes("csv", "gzip", "zstd")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.escape_formulas, bool):
            raise ArgumentError(f"escape_formulas={self.escape_formulas!r} is neither True nor False.")
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            raise ArgumentError(
                f"delimiter={self.delimiter!r} is not one ASCII character other than a quote."
            )

    @property
    def titles(self) -> int:
        return int(self.header)

    def options(self) -> dict[str, Any]:
        options = super().options()
        if not self.escape_formulas:
            del options["escape_formulas"]  # as in older outputs
        return options

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for nested columns and for bytes."""
        for column in schema:
            if _holds_bytes(column.type):
                raise cannot_hold(self.kind, column, "bytes are not text")
        probe_columns(schema, self.kind, self._try)

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _CsvEncoder(self, self.compressed(stream), schema)

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        return count_lines(unpacked(path, described)) - bool(described.get("header", True))

    def _try(self, schema: pa.Schema) -> None:
        encoder = _CsvEncoder(self, pa.BufferOutputStream(), schema)
        encoder.write(pa.RecordBatch.from_arrays([pa.nulls(1, c.type) for c in schema], schema.names))
        encoder.close()


class _CsvEncoder:
    """pyarrow's CSV writer, past what it lacks."""

    def __init__(self, sink: Csv, stream: pa.NativeFile, schema: pa.Schema) -> None:
        self._schema = pa.schema([(column.name, _written_as(column.type)) for column in schema])
        self._escapes = sink.escape_formulas
        self._stream = stream
        self._rows = 0
        names = [_FORMULA.sub(r"'\1", name) if self._escapes else name for name in schema.names]
        self._written = pa.schema(list(zip(names, self._schema.types, strict=True)))
        self._writer = pacsv.CSVWriter(
            stream,
            self._written,
            write_options=pacsv.WriteOptions(
                include_header=sink.header, delimiter=sink.delimiter, batch_size=8192
            ),
        )

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_plain(values, c.type) for values, c in zip(batch.columns, self._schema, strict=True)]
        if self._escapes:
            columns = [_without_formulas(column) for column in columns]
        if len(columns) == 1 and columns[0].null_count:
            self._write_alone(columns[0])
        else:
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._written))
        self._rows += len(columns[0])

    def _write_alone(self, values: pa.Array) -> None:
        """Write an only column that has nulls: a null would be an empty line, which readers skip."""
        text = values.cast(TEXT)
        if pt.is_string(values.type) or pt.is_large_string(values.type) or pt.is_dictionary(values.type):
            text = join('"', pc.replace_substring(text, '"', '""'), '"')
        put(self._stream, join(fill(text, '""'), "\n"))

    def close(self) -> int:
        self._writer.close()
        self._stream.close()
        return self._rows


def count_lines(chunks: Iterable[bytes]) -> int:
    """Count the ends of lines that no quotes are around.

    >>> count_lines([b'"a","b"\\n1,"x\\n', b'""y"\\n'])
    2
    """
    rows, quoted = 0, False
    for chunk in chunks:
        for i, piece in enumerate(chunk.split(b'"')):
            quoted ^= i > 0
            if not quoted:
                rows += piece.count(b"\n")
    return rows


def _without_formulas(values: pa.Array) -> pa.Array:
    """Put an apostrophe before texts that a spreadsheet would compute."""
    if not (pt.is_string(values.type) or pt.is_large_string(values.type)):
        return values
    return pc.replace_substring_regex(values, pattern=_FORMULA.pattern, replacement=r"'\1")


def _holds_bytes(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_bytes(kind.storage_type)
    if pt.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    tests = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)
    return any(test(kind) for test in tests)


def _written_as(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _written_as(kind.storage_type)
    if pt.is_dictionary(kind):
        return _written_as(kind.value_type)
    return pa.large_string() if pt.is_string_view(kind) else kind


def _plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values if values.type == kind else values.cast(kind)
