"""Text files as bytes: plain or compressed, whatever their encoding, and their first few records."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from headrace.core.stores.objects import open_arrow, open_binary, open_range
from headrace.core.work import Split
from headrace.errors import ArgumentError, UnreadableFile

TO_THE_END = -1  # Split.stop of a file that is read as one stream
HEAD_BYTES = 1 << 20
_HEAD_LIMIT = 1 << 26
_BLOCK = 1 << 20
_LARGEST_BLOCK = 1 << 30
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
        raise unreadable(path, error) from error


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


def unreadable(path: str, error: Exception) -> UnreadableFile:
    """Explain an error that is about the file's bytes, not about a row."""
    return UnreadableFile(
        f"Cannot read {path!r}: {str(error).rstrip('.')}. Restore the file or leave it out."
    )


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
