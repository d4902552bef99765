"""Text files as bytes: plain or compressed, whatever their encoding, and where their records end."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.plain import columns_within
from headrace.core.files.input_files import InputFile
from headrace.core.stores.objects import open_arrow, open_binary, open_range
from headrace.core.work import Split
from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources.file_source import damaged

TO_THE_END = -1  # Split.stop of a file that is read as one stream
HEAD_BYTES = 1 << 20
_HEAD_LIMIT = 1 << 26
_BLOCK = 1 << 20
_LARGEST_BLOCK = 1 << 30
_SAMPLE = 256 << 10  # bytes, by which the number of lines is told
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_BOM = codecs.BOM_UTF8


class TextFile(NamedTuple):
    """What planning found out: where records begin, whether the file can be cut.

    ``body`` counts bytes of the stream that ``open_stream`` gives. ``names``: of the columns, where they go by their
    places; None: the file is empty. ``one_value``: it is an array or an object of JSON.
    """

    body: int
    cuttable: bool
    names: tuple[str, ...] | None
    one_value: bool = False


class Head(NamedTuple):
    """The first bytes of a file's stream; ``whole`` if there are no more."""

    data: bytes
    whole: bool


def compression_of(path: str) -> str | None:
    """Tell the compression by the file's first bytes: suffixes lie, and ``.gz`` may hold plain text."""
    try:
        with open_binary(path) as file:
            start = file.read(4)
    except OSError as error:
        raise UnreadableFile(f"Cannot open input file {path!r}: {error.strerror}.") from error
    return compression_in(start)


def compression_in(data: bytes) -> str | None:
    """Tell the compression of data by how they begin."""
    return next((name for magic, name in _MAGIC.items() if data.startswith(magic)), None)


def plain_encoding(encoding: str) -> str | None:
    """Return the encoding's Arrow name if newlines can be found in its bytes, None if it must be decoded."""
    name = codecs.lookup(encoding).name
    if name in ("utf-8", "utf-8-sig", "ascii"):
        return "utf8"
    return name if name.startswith(("iso8859", "cp125")) else None


def open_stream(path: str, encoding: str = "utf8") -> pa.NativeFile:
    """Open the decompressed bytes of a file; transcoded to UTF-8 unless ``plain_encoding`` knows better."""
    compression = compression_of(path)
    stream: pa.NativeFile = open_arrow(path)
    if compression is not None:
        stream = pa.CompressedInputStream(stream, compression)
    if plain_encoding(encoding) is None:
        stream = pa.lib.transcoding_input_stream(stream, encoding, "utf-8")
    return stream


def open_split(path: str, split: Split, encoding: str = "utf8") -> pa.NativeFile:
    """Open the bytes of one split."""
    if split.stop != TO_THE_END:
        return open_range(path, split.start, split.stop)
    stream = open_stream(path, encoding)
    if isinstance(stream, (pa.OSFile, pa.PythonFile)):
        stream.seek(split.start)
    else:
        read_fully(stream, split.start)
    return stream


def read_fully(stream: pa.NativeFile, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end; a decompressor may give less at a time."""
    pieces: list[bytes] = []
    while size > 0 and (piece := stream.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def heads(path: str, encoding: str = "utf8", size: int = HEAD_BYTES) -> Iterator[Head]:
    """Yield the first bytes of a file, then eight times as many, and so on up to a sane limit."""
    try:
        with open_stream(path, encoding) as stream:
            data = b""
            while size <= _HEAD_LIMIT:
                data += read_fully(stream, size - len(data))
                yield Head(data, len(data) < size)
                if len(data) < size:
                    return
                size *= 8
    except MemoryError:
        raise
    except UnicodeError as error:
        raise UnreadableFile(
            f"Cannot read {path!r}: its text is not {encoding} ({error}). Say which encoding the file has with "
            "encoding=, for instance 'utf8' or 'latin1'."
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise damaged(repr(path), error) from error


def likely_lines(files: Sequence[InputFile], *, objects: bool) -> int:
    """Return about how many lines there are, by the first ones: exactly, of little plain text; 0 where nothing tells.

    Nothing does where a file is compressed and not small. ``objects``: each line is one of JSON, or nothing tells.
    """
    looked_at = lines = 0
    try:
        for file in files:
            with open_stream(file.path) as stream:
                data = read_fully(stream, _SAMPLE - min(looked_at, _SAMPLE - 1))
                packed = isinstance(stream, pa.CompressedInputStream)
                if packed and stream.read(1):
                    return 0
            first = data[skip_mark(data) :].lstrip().partition(b"\n")[0]
            if objects and not (first.startswith(b"{") and first.rstrip().endswith(b"}")):
                return 0
            lines += data.count(b"\n") + (bool(data) and len(data) == file.size and not data.endswith(b"\n"))
            looked_at += file.size if packed else len(data)
            if looked_at >= _SAMPLE:
                break
    except (OSError, pa.ArrowException):  # whoever reads them has the better message
        return 0
    return round(lines * sum(file.size for file in files) / looked_at) if looked_at else 0


def in_blocks(batches: Callable[[int], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of ``batches(block size)``; a record longer than a block makes it start over.

    The second time blocks are larger, and the rows that were given before are skipped.
    """
    given, block = 0, _BLOCK
    while True:
        skip = given
        try:
            for batch in batches(block):
                rest = batch.slice(min(skip, batch.num_rows))
                skip -= batch.num_rows - rest.num_rows
                given += rest.num_rows
                if rest.num_rows:
                    yield rest
            return
        except pa.ArrowInvalid as error:
            if str(error).startswith(("Empty JSON", "CSV parse error: Empty CSV", "Empty CSV")):
                return
            if "straddl" not in str(error) or block >= _LARGEST_BLOCK:
                raise
            block *= 8


def tolerant_chunks(path: str, split: Split, encoding: str = "utf8") -> Iterator[bytes]:
    """Yield the bytes of one split; where ``open_split`` fails to transcode, a byte that is never UTF-8."""
    if plain_encoding(encoding) is not None:
        with open_split(path, split, encoding) as stream:
            while chunk := stream.read(_BLOCK):
                yield chunk
        return
    before = split.start
    with open_stream(path) as stream:
        for chunk in transcoded(iter(lambda: stream.read(_BLOCK), b""), encoding):
            yield chunk[before:]
            before = max(0, before - len(chunk))


def transcoded(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the same text in UTF-8; where it cannot be decoded, a byte that is never UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)(_UNREADABLE)
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "surrogateescape")
    yield decoder.decode(b"", final=True).encode("utf-8", "surrogateescape")


def _as_unreadable(error: UnicodeError) -> tuple[str, int]:
    """Stand in for bytes that are not text: ``surrogateescape`` makes it 0xFF again, which no UTF-8 has."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


_UNREADABLE = "headrace.unreadable"
codecs.register_error(_UNREADABLE, _as_unreadable)


def pieces(chunks: Iterable[bytes], end_of: Callable[[bytes], int]) -> Iterator[bytes]:
    """Yield whole records, a megabyte or more at a time; ``end_of`` finds the end of the last whole one."""
    held: list[bytes] = []
    size = wanted = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size < wanted:
            continue
        data = b"".join(held)
        end = end_of(data)
        if end:
            yield data[:end]
        held, size = [data[end:]], len(data) - end
        wanted = 0 if end else 2 * size
        if size > _LARGEST_BLOCK:
            raise pa.ArrowInvalid("it has a record of more than 1 GiB")
    if size:
        yield b"".join(held)


def skip_mark(data: bytes) -> int:
    """Return the length of a byte order mark at the start of UTF-8 text."""
    return len(_BOM) if data.startswith(_BOM) else 0


# ------------------------------------------------------------ files that are no text


_LOOKED_AT = 4096
_BINARY = (
    (0, b"PAR1", "PAR1", "a Parquet file; read_parquet reads it"),
    (
        0,
        b"ARROW1",
        "ARROW1",
        "an Arrow IPC (Feather) file; pyarrow.feather.read_table and from_arrow take it",
    ),
    (0, b"FEA1", "FEA1", "a Feather file; pyarrow.feather.read_table and from_arrow take it"),
    (0, b"ORC", "ORC", "an ORC file; read_orc reads it"),
    (0, b"Obj\x01", "Obj", "an Avro file; read_avro reads it"),
    (0, b"PK\x03\x04", "PK", "a zip archive or an Excel workbook; unpack it, or save it as CSV"),
    (0, b"SQLite format 3", "SQLite format 3", "an SQLite database; export the table first"),
    (0, b"\x89HDF", "HDF", "an HDF5 file; convert it to Parquet first"),
    (0, b"%PDF", "%PDF", "a PDF document; read_binary_files reads it as bytes"),
    (0, b"\x89PNG", "PNG", "an image; read_images reads it"),
    (257, b"ustar", "a tar header", "a tar archive; unpack it"),
)
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def refuse_other_formats(path: str, data: bytes, wanted: str, *, encoding: str | None) -> None:
    """Raise ``UnreadableFile`` if ``data``, the first bytes of a file's stream, are of a binary format.

    ``encoding`` is the text's; None where only UTF-8 will do. Letters such as ``PAR1`` may begin a text, too:
    only with a zero byte after it is it a signature.
    """
    start = data[:_LOOKED_AT]
    begins = f"Cannot read {path!r} as {wanted}: it begins with"
    if encoding is None or plain_encoding(encoding) == "utf8":
        for mark, name in _MARKS:
            if start.startswith(mark):
                advice = f"set encoding={name!r}" if encoding is not None else "convert it to UTF-8"
                raise UnreadableFile(f"{begins} the mark of {name.upper()} text; {advice}.")
    if b"\0" not in start:
        return
    for offset, signature, shown, what in _BINARY:
        if start.startswith(signature, offset):
            packing = compression_of(path)
            packed = f" (once decompressed; {packing})" if packing else ""
            raise UnreadableFile(f"{begins} {shown}{packed}, so it is {what}.")


def check_types(
    kind: str, argument: str, types: Mapping[str, pa.DataType], parse: Callable[[pa.DataType], None]
) -> None:
    """Raise ``ArgumentError`` for a column of a type that Arrow's ``parse`` does not know."""
    for name, type_ in types.items():
        try:
            parse(type_)
        except pa.ArrowNotImplementedError:
            raise ArgumentError(
                f"{argument} has {type_} for column {name!r}, which cannot be read from {kind}. Read the column as "
                "another type, such as string or float64, and convert it in a step."
            ) from None


def not_text(path: str, where: str, error: UnicodeError, encoding: str = "UTF-8") -> UnreadableFile:
    """Return the error for a text file, part of which is not in the encoding that it was read with."""
    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
        encoding = "UTF-8"
    byte = f" (byte {error.object[error.start]:#04x})" if isinstance(error, UnicodeDecodeError) else ""
    return UnreadableFile(
        f"Cannot read {path!r}: {where} is not valid {encoding}{byte}. Set the encoding of the file, for "
        "instance encoding='latin1', if it is text at all."
    )


def newline_cuts(file: BinaryIO, start: int, step: int) -> list[int]:
    """Return line ends, at least ``step`` bytes apart; looks only at the places in question."""
    size = file.seek(0, os.SEEK_END)
    cuts: list[int] = []
    target = start + step
    while target < size:
        file.seek(target - 1)
        while (piece := file.readline(1 << 16)) and not piece.endswith(b"\n"):
            pass
        end = file.tell()
        if end < size:
            cuts.append(end)
        target = end + step
    return cuts


# ------------------------------------------------------------ whole numbers that float64 has not

# Beyond 2**53 float64 has every second whole number, then every fourth. A column of whole numbers and fractions is
# read as float64, and so is one of numbers beyond int64. There each number that is big enough to have been rounded is
# looked at: what was written decides whether it was.

_BEYOND = 2.0**53
_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_DIGITS = 309  # the most that a float64 has before the point


def rounded(text: str) -> str | None:
    """Return what becomes of a number that float64 does not hold; None if it holds it, or if it is not a number.

    >>> rounded("9007199254740993")
    'a whole number that float64 would round to 9007199254740992'
    >>> rounded("1e400"), rounded("9007199254740992"), rounded("1.7e18"), rounded("inf")
    ('too big for float64', None, None, None)
    """
    if _WHOLE.fullmatch(text):
        digits = text.strip()
        if len(digits) > _DIGITS + 1:
            return "too big for float64"
        try:
            value = float(int(digits))
        except OverflowError:
            return "too big for float64"
        return None if value == int(digits) else f"a whole number that float64 would round to {value:.0f}"
    if any(mark.isdigit() for mark in text):
        try:
            return "too big for float64" if np.isinf(float(text)) else None
        except ValueError:
            return None
    return None


def large(column: pa.Array) -> bool:
    """Return whether a column holds, at whatever depth, a floating-point number of 2**53 or more."""
    if pa.types.is_floating(column.type):
        return bool(_large(column).any())
    return any(map(large, columns_within(column)))


def _large(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.abs(to_numpy(column)) >= _BEYOND
    return found


def unrounded(
    batches: Iterable[pa.RecordBatch],
    names: Sequence[str],
    texts: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
    number: Callable[[str], int],
) -> Iterator[pa.RecordBatch]:
    """Pass the batches of a CSV file on; raise what Arrow would if a number in columns ``names`` was rounded.

    ``texts`` reads the same rows again, columns as they are written; ``number`` numbers a column.
    """
    written: _Rows | None = None
    given = 0
    for batch in batches:
        doubtful = [name for name in names if large(batch.column(name))]
        if doubtful:
            written = written or _Rows(texts(names))
            rows = written.of(given, batch.num_rows)
            for name in doubtful:
                at = np.flatnonzero(_large(batch.column(name)))
                for row, text in zip(at.tolist(), rows[name].take(pa.array(at)).to_pylist(), strict=True):
                    if (what := rounded(text)) is not None:
                        raise pa.ArrowInvalid(
                            f"In CSV column #{number(name)}: Row #{given + row + 1}: CSV conversion error to "
                            f"double: {text.strip()} is {what}"
                        )
        given += batch.num_rows
        yield batch


class _Rows:
    """The rows of some batches, by their numbers, in order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []
        self._first = self._stop = 0

    def of(self, start: int, count: int) -> pa.Table:
        while self._stop < start + count:
            batch = next(self._batches)
            self._held.append(batch)
            self._stop += batch.num_rows
        while self._first + self._held[0].num_rows <= start:
            self._first += self._held.pop(0).num_rows
        return pa.Table.from_batches(self._held).slice(start - self._first, count)
