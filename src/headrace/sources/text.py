"""Text files as bytes: plain or compressed, whatever their encoding, and where their records end."""

from __future__ import annotations

import codecs
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

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
    """What planning found out: where records begin, whether the file can be cut, which header it has.

    ``body`` counts bytes of the stream that ``open_stream`` gives. ``header`` is the number of a list of column
    names that files share; -1: the file is empty.
    """

    body: int
    cuttable: bool
    header: int


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
    try:
        name = codecs.lookup(encoding).name
    except LookupError as error:
        raise ArgumentError(f"There is no text encoding {encoding!r}; try 'utf8' or 'latin1'.") from error
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
        for chunk in transcoded(iter(lambda: stream.read(_BLOCK), b""), encoding, errors=UNREADABLE):
            yield chunk[before:]
            before = max(0, before - len(chunk))


def transcoded(chunks: Iterable[bytes], encoding: str, errors: str = "strict") -> Iterator[bytes]:
    """Yield the same text in UTF-8. Before bytes that are not text, what comes before them is given."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    for chunk in chunks:
        state = decoder.getstate()
        try:
            decoded = decoder.decode(chunk)
        except UnicodeDecodeError as error:
            decoder.setstate(state)
            yield decoder.decode(chunk[: max(0, error.start - len(state[0]))]).encode()
            raise
        yield decoded.encode("utf-8", "surrogateescape")
    yield decoder.decode(b"", final=True).encode("utf-8", "surrogateescape")


def _as_unreadable(error: UnicodeError) -> tuple[str, int]:
    """Stand in for bytes that are not text: ``surrogateescape`` makes it 0xFF again, which no UTF-8 has."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


UNREADABLE = "headrace.unreadable"
codecs.register_error(UNREADABLE, _as_unreadable)


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


def splits_of(
    file: int, text: TextFile, size: int, cuts: Sequence[int], end: int | None = None
) -> Iterator[Split]:
    """Yield the splits of a file: between the cuts, or one for a file that must be read as a stream.

    ``end`` is the ``stop`` of the last one, if not ``size``.
    """
    if text.header < 0:
        return
    if not text.cuttable:
        yield Split(file, text.body, TO_THE_END, bytes=4 * size)  # text packs about so well
        return
    edges = [text.body, *cuts, size]
    for start, stop in pairwise(edges):
        if start < stop:
            last = stop if stop < size or end is None else end
            yield Split(file, start, last, bytes=stop - start, first=0 if start == text.body else -1)


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


def not_text(path: str, where: str, error: UnicodeError, encoding: str = "UTF-8") -> UnreadableFile:
    """Return the error for a text file, part of which is not in the encoding that it was read with."""
    byte = f" (byte {error.object[error.start]:#04x})" if isinstance(error, UnicodeDecodeError) else ""
    return UnreadableFile(
        f"Cannot read {path!r}: {where} is not valid {encoding}{byte}. Set the encoding of the file, for "
        "instance encoding='latin1', if it is text at all."
    )


# Where records end: the offsets at which a text file may be cut. A CSV record ends at a newline outside quotes, so
# the whole file up to there decides. Telling outside from inside byte by byte would be slow; counting quotes is
# fast, but right only if every quote is structural. So each chunk is counted first, the count is checked, and a
# chunk with stray quotes (``5" pipe``) is walked quote by quote. The rules are those of Arrow's parser: a quote
# opens only at the start of a field; inside, two are one.

_CHUNK = 1 << 22
_LINE_END = re.compile(rb"\r\n|\n|\r")


class QuoteNeverClosed(ValueError):
    """The file ends inside quotes; the arguments are the offset of the opening one, and the cuts before it."""


class RecordScanner:
    """Tells record ends from quoted newlines, chunk by chunk, from the start of a record on."""

    def __init__(self, delimiter: bytes, quote: bytes | None) -> None:
        self._quote = quote
        self._starts = delimiter + b"\n\r"
        self._table = np.zeros(256, np.bool_)
        self._table[list(self._starts + (quote or b""))] = True
        self._inside = False
        self._previous = b"\n"
        self._closed = False  # the last byte was a closing quote: one more makes it a doubled quote
        self._chunk = b""
        self._opens: Sequence[int] = ()
        self._closes: Sequence[int] = ()

    def feed(self, chunk: bytes) -> None:
        """Go on to the next bytes; offsets are counted from their start."""
        self._chunk = chunk
        if self._quote is None or self._quote not in chunk:
            self._opens, self._closes = ([-1], [len(chunk)]) if self._inside else ([], [])
            self._closed = False
        elif not self._count_quotes():
            self._walk_quotes()
        self._previous = chunk[-1:]

    def end_from(self, position: int) -> int | None:
        """Return the offset behind the first newline at or after ``position`` that ends a record."""
        while True:
            newline = self._chunk.find(b"\n", position)
            if newline < 0:
                return None
            quoted = self._quoted(newline)
            if quoted is None:
                return newline + 1
            position = self._closes[quoted]

    def last_end(self) -> int | None:
        """Return the offset behind the last newline that ends a record."""
        position = len(self._chunk)
        while True:
            newline = self._chunk.rfind(b"\n", 0, max(0, position))
            if newline < 0:
                return None
            quoted = self._quoted(newline)
            if quoted is None:
                return newline + 1
            position = self._opens[quoted]

    def first_end(self) -> int | None:
        """Return the offset behind the first record, if also a bare carriage return ends one."""
        for match in _LINE_END.finditer(self._chunk):
            if self._quoted(match.start()) is None:
                return match.end()
        return None

    def records(self, data: bytes) -> list[bytes]:
        """Cut ``data``, as long as what was fed, at every record's end."""
        ends = [m.end() for m in _LINE_END.finditer(self._chunk) if self._quoted(m.start()) is None]
        return [data[start:end] for start, end in pairwise(dict.fromkeys([0, *ends, len(data)]))]

    def open_quote(self) -> int | None:
        """Return the offset of a quote that is still open at the end; -1: it came before this chunk."""
        return self._opens[-1] if self._inside else None

    def _quoted(self, offset: int) -> int | None:
        """Return the number of the quoted piece that ``offset`` is in."""
        found = bisect_right(self._opens, offset) - 1
        return found if found >= 0 and self._closes[found] >= offset else None

    def _count_quotes(self) -> bool:
        """Assume that every other quote opens a value; return whether that holds."""
        assert self._quote is not None
        raw = np.frombuffer(self._chunk, np.uint8)
        quotes = np.flatnonzero(raw == self._quote[0])
        if self._inside:
            quotes = np.concatenate(([-1], quotes))
        opens, closes = quotes[0::2], quotes[1::2]
        first = opens[0]
        if first == 0 and not (self._closed or self._previous in self._starts):
            return False
        # An opening quote follows a delimiter or a newline, or the closing quote right before: a doubled one.
        if not self._table[raw[opens[opens > 0] - 1]].all():
            return False
        self._inside = len(opens) > len(closes)
        self._closed = not self._inside and closes[-1] == len(raw) - 1
        self._opens = opens.tolist()
        self._closes = [*closes.tolist(), len(raw)] if self._inside else closes.tolist()
        return True

    def _walk_quotes(self) -> None:
        assert self._quote is not None
        chunk, quote = self._chunk, self._quote
        opens: list[int] = [-1] if self._inside else []
        closes: list[int] = []
        closed, position = self._closed, 0
        while (at := chunk.find(quote, position)) >= 0:
            position = at + 1
            before = chunk[at - 1 : at] if at else self._previous
            if len(opens) > len(closes):
                if chunk[at + 1 : at + 2] == quote:
                    position = at + 2
                else:
                    closes.append(at)
            elif before in self._starts or (at == 0 and closed):
                opens.append(at)
        self._inside = len(opens) > len(closes)
        self._closed = bool(closes) and not self._inside and closes[-1] == len(chunk) - 1
        self._opens = opens
        self._closes = [*closes, len(chunk)] if self._inside else closes


def quoted_cuts(
    file: BinaryIO, start: int, step: int, scanner: RecordScanner, chunk: int = _CHUNK
) -> list[int]:
    """Return record ends, at least ``step`` bytes apart, between ``start`` and the file's end.

    Raises ``QuoteNeverClosed`` if the file ends inside quotes.
    """
    size = file.seek(0, os.SEEK_END)
    cuts: list[int] = []
    target, offset, last_opened = start + step, start, -1
    file.seek(start)
    while data := file.read(chunk):
        scanner.feed(data)
        while (end := scanner.end_from(max(0, target - 1 - offset))) is not None:
            if offset + end < size:
                cuts.append(offset + end)
            target = offset + end + step
        if (opened := scanner.open_quote()) is not None and opened >= 0:
            last_opened = offset + opened
        offset += len(data)
    if scanner.open_quote() is not None:
        raise QuoteNeverClosed(last_opened, cuts)
    return cuts


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
