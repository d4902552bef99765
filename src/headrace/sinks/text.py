"""Columns of text, and lines made of them, in Arrow's own loops: nothing here runs once per row.

Python values would cost about 0.3 µs each. ``pa.array`` and ``pa.scalar`` are avoided as they import pandas.
"""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from headrace.core.arrow.plain import PER_SECOND, kind_of, plain, plain_type
from headrace.core.files import safe_files
from headrace.core.files.formats import compressed_suffixes
from headrace.core.files.staged import KeptBytes, StagedStream
from headrace.core.target_ports import Encoder, Format
from headrace.errors import ArgumentError
from headrace.sinks.files import cannot_hold, choose, probe_columns

TEXT = pa.large_string()
_CHUNK = 1 << 20


@cache
def literal(text: str) -> pa.Scalar:
    """Return ``text`` as a scalar that Arrow's functions take."""
    data = text.encode()
    offsets = pa.py_buffer(struct.pack("=2q", 0, len(data)))
    return pa.Array.from_buffers(TEXT, 1, [None, offsets, pa.py_buffer(data)])[0]


def join(*pieces: pa.Array | str) -> pa.Array:
    """Concatenate row by row; a null piece makes its row null."""
    return pc.binary_join_element_wise(
        *(literal(piece) if isinstance(piece, str) else piece for piece in pieces), literal("")
    )


def fill(values: pa.Array, text: str) -> pa.Array:
    """Put ``text`` where values are null."""
    return pc.fill_null(values, literal(text)) if values.null_count else values


def put(stream: pa.NativeFile, lines: pa.Array) -> None:
    """Write an array of ``TEXT`` without nulls, end to end."""
    _, offsets, data = lines.buffers()
    if data is None or len(lines) == 0:
        return
    bounds = memoryview(offsets).cast("q")
    start, stop = bounds[lines.offset], bounds[lines.offset + len(lines)]
    stream.write(data.slice(start, stop - start))


_FIRST, _LAST = -62_167_219_200, 253_402_300_799  # of year 0 and of year 9999, in seconds
_WHOLE_MINUTES = 63_072_000  # 1972: since then, the offset of each zone is


def as_text_has_it(values: pa.Array) -> pa.Array:
    """Return a column whose dates and times ISO 8601 can hold: years of four digits, else ``ArrowInvalid`` is raised.

    Where a zone's offset may have seconds, which no reader takes, the times are in UTC.
    """
    type_ = values.type
    if not (pt.is_timestamp(type_) or pt.is_date(type_)):
        return values
    bounds = pc.min_max(values.view(pa.int32() if pt.is_date32(type_) else pa.int64())).values()
    low, high = (bound.as_py() for bound in bounds)
    if low is None:
        return values
    if pt.is_date32(type_):
        low, high = low * 86_400, high * 86_400
    else:
        per_second = PER_SECOND["ms" if pt.is_date64(type_) else type_.unit]
        low, high = low // per_second, high // per_second
    if low < _FIRST or high > _LAST:
        raise pa.ArrowInvalid("a year is not one of 0 to 9999")
    local = pt.is_timestamp(type_) and type_.tz is not None
    return values.cast(pa.timestamp(type_.unit, "UTC")) if local and low < _WHOLE_MINUTES else values


def named_where_refused(
    batch: pa.RecordBatch, kind: str, make: Callable[[pa.Array], pa.Array]
) -> list[pa.Array]:
    """Make something of each column; where Arrow refuses, raise ``SinkError`` that names the column."""
    made = []
    for column, values in zip(batch.schema, batch.columns, strict=True):
        try:
            made.append(make(values))
        except pa.ArrowInvalid as error:
            raise cannot_hold(kind, column, str(error)) from error
    return made


def unpacked(path: Path, described: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of a part whose format may be compressed as a whole."""
    with (
        safe_files.file(path) as opened,
        pa.input_stream(opened, compression=described.get("compression")) as stream,
    ):
        while chunk := stream.read(_CHUNK):
            yield chunk


@dataclass(frozen=True)
class Compressed(Format):
    """Files that may be compressed as a whole; ``suffixes`` has the suffix for each compression."""

    compression: str | None = field(default=None, kw_only=True)

    suffixes: ClassVar[Mapping[str | None, str]]

    def __post_init__(self) -> None:
        choose(self.compression, self.suffixes, "compression")

    @property
    def suffix(self) -> str:
        return self.suffixes[self.compression]

    def compressed(self, stream: StagedStream) -> pa.NativeFile:
        """Open a stream for Arrow; gzip at its usual level 6, where Arrow takes the slow 9."""
        if self.compression == "gzip":
            return pa.PythonFile(gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0), mode="w")
        file = pa.PythonFile(stream, mode="w")
        return file if self.compression is None else pa.CompressedOutputStream(file, self.compression)


@dataclass(frozen=True)
class Lined(Compressed):
    """Files with a line for each row, which goes on where a quote is open; maybe behind a header."""

    quotes: ClassVar[bool] = False

    @property
    def titles(self) -> int:
        """How many lines are before those of rows."""
        return 0

    def rows_back(self, path: Path) -> Iterator[pa.RecordBatch]:
        return _lines(unpacked(path, {"compression": self.compression}), quotes=self.quotes, skip=self.titles)

    def as_stored(self, schema: pa.Schema) -> Format:
        return StoredLines(self, self._plain((), schema) if self.titles else b"")

    def rows_stored(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return _lines(iter([self._plain(batches, schema)]), quotes=self.quotes, skip=self.titles)

    def _plain(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
        """Return a file with these rows, as it is without compression."""
        stream = KeptBytes()
        encoder = replace(self, compression=None).open(cast("StagedStream", stream), schema)
        for batch in batches:
            encoder.write(batch)
        encoder.close()
        return stream.getvalue()


@dataclass(frozen=True)
class StoredLines(Format):
    """Lines that were encoded before, behind a header that was, too."""

    of: Compressed
    header: bytes

    @property
    def kind(self) -> str:
        return self.of.kind

    @property
    def suffix(self) -> str:
        return self.of.suffix

    def open(self, stream: StagedStream, schema: pa.Schema) -> _LineEncoder:
        return _LineEncoder(self.of.compressed(stream), self.header)


class _LineEncoder:
    """Writes them one after the other."""

    def __init__(self, stream: pa.NativeFile, header: bytes) -> None:
        self._stream, self._rows = stream, 0
        stream.write(header)

    def write(self, batch: pa.RecordBatch) -> None:
        put(self._stream, batch.column(0))
        self._rows += batch.num_rows

    def close(self) -> int:
        self._stream.close()
        return self._rows


def _lines(chunks: Iterator[bytes], *, quotes: bool, skip: int) -> Iterator[pa.RecordBatch]:
    r"""Yield the lines in chunks of a file, with their ends; those of a chunk at a time.

    >>> [batch.column(0).to_pylist() for batch in _lines(iter([b'a\n"x\n', b'y"\n']), quotes=True, skip=1)]
    [[], ['"x\ny"\n']]
    """
    held: list[bytes] = []
    begun, is_open = b"", False
    for chunk in chunks:
        *whole, begun = (begun + chunk).split(b"\n")
        ready = []
        for line in whole:
            held.append(line)
            is_open ^= quotes and line.count(b'"') % 2 == 1
            if not is_open:
                ready.append(b"\n".join([*held, b""]))
                held.clear()
        rows, skip = ready[skip:], max(0, skip - len(ready))
        yield pa.record_batch([pa.array([row.decode() for row in rows], TEXT)], names=["line"])


# ------------------------------------------------------------ CSV


_FORMULA = re.compile(r"^([=+\-@\t\r\n＝＋－＠])")
"""Beginnings of texts that spreadsheets read as formulas, by OWASP's page on CSV injection."""


@dataclass(frozen=True)
class Csv(Lined):
    """One CSV file for each shard, each with a header of its own.

    Text is quoted and everything else bare, so that null (nothing) and the empty string (``""``) differ.
    Times are ISO 8601, those with a zone carry their offset, or are in UTC if some are before 1972; decimals keep
    every digit, floats the fewest that give them back; durations are integers of their unit. ``nan`` stands for NaN,
    which pyarrow reads as null. Columns of lists, structs or bytes are refused. ``escape_formulas`` puts an
    apostrophe before text, names of columns included, that a spreadsheet would take for a formula.
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
            if kind_of(column.type) == "binary":
                raise cannot_hold(self.kind, column, "bytes are not text")
        probe_columns(schema, self.kind, self._try)

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _CsvEncoder(self, self.compressed(stream), schema)

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        return count_lines(unpacked(path, described)) - bool(described.get("header", True))

    @classmethod
    def read_by(cls, described: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
        types = {each.name: plain_type(each.type) for each in schema}
        return {
            "delimiter": described.get("delimiter", ","),
            "has_header": described.get("header", True),
            "column_names": schema.names,
            "column_types": {
                n: pa.float32() if pt.is_float16(type_) else type_ for n, type_ in types.items()
            },
            "null_values": [""],
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": len(schema) == 1,  # see _write_alone
        }

    def _try(self, schema: pa.Schema) -> None:
        encoder = _CsvEncoder(self, pa.BufferOutputStream(), schema)
        encoder.write(pa.RecordBatch.from_arrays([pa.nulls(1, c.type) for c in schema], schema.names))
        encoder.close()


class _CsvEncoder:
    """pyarrow's CSV writer, past what it lacks."""

    def __init__(self, sink: Csv, stream: pa.NativeFile, schema: pa.Schema) -> None:
        self._schema = pa.schema([(column.name, plain_type(column.type)) for column in schema])
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
        columns = named_where_refused(batch, Csv.kind, lambda each: as_text_has_it(plain(each)))
        if self._escapes:
            columns = [_without_formulas(column) for column in columns]
        if len(columns) == 1 and columns[0].null_count:
            self._write_alone(columns[0])
        else:
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, names=self._written.names))
        self._rows += len(columns[0])

    def _write_alone(self, values: pa.Array) -> None:
        """Write an only column that has nulls: a null would be an empty line, which readers skip."""
        text = values.cast(TEXT)
        if kind_of(values.type) == "text":
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
    if kind_of(values.type) != "text":
        return values
    return pc.replace_substring_regex(values, pattern=_FORMULA.pattern, replacement=r"'\1")
