"""Columns of text, and lines made of them, in Arrow's own loops: nothing here runs once per row.

Python values would cost about 0.3 µs each. ``pa.array`` and ``pa.scalar`` are avoided as they import pandas.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.files import safe_files
from headrace.core.files.staged import KeptBytes, StagedStream
from headrace.core.ports import Format
from headrace.sinks.files import choose

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
