"""Columns of text, and lines made of them, in Arrow's own loops: nothing here runs once per row.

Python values would cost about 0.3 µs each. ``pa.array`` and ``pa.scalar`` are avoided as they import pandas.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.files import safe_files
from headrace.core.files.staged import StagedStream
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
