"""A Parquet file, here or in an object store, whose column chunks are copied as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Protocol

from headrace.core.files.input_files import InputFile, check_unchanged
from headrace.core.parquet.compact import (
    BINARY,
    I32,
    STRUCT,
    TRUE,
    NotUnderstood,
    Shape,
    Struct,
    number,
    read_struct,
)
from headrace.core.parquet.footer import TAIL, Chunk, Footer, parse, read_tail, why_not_copied
from headrace.core.stores.objects import ObjectPath, RangesAhead, coalesced, object_of

# ---------------------------------------------------------------- pages of a chunk, by their headers

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_PROBE = 256  # bytes that most headers have room in; statistics in them may be long
_MOST = 16 << 20

_V1 = {1: I32, 2: I32, 3: I32, 4: I32, 5: STRUCT}
_V2 = {1: I32, 2: I32, 3: I32, 4: I32, 5: I32, 6: I32, 7: TRUE, 8: STRUCT}
_HEADER: Shape = {1: I32, 2: I32, 3: I32, 4: I32, 5: _V1, 7: {1: I32, 2: I32, 3: TRUE}, 8: _V2, 9: BINARY}


def check_pages(chunk: Chunk, rows: int, read: Callable[[int, int], bytes]) -> None:
    """Raise ``NotUnderstood`` unless pages fill a chunk from its first byte to its last, and have all its values.

    ``read(offset, size)`` gives bytes of the file.
    """
    at, values, of_rows, pages = chunk.start, 0, 0, 0
    while at < chunk.stop:
        header, at = _header(at, chunk.stop, read)
        kind, size = number(header.get(1), -1), number(header.get(3), -1)
        field = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0)
        if field not in header or size < 0 or number(header.get(2), -1) < 0:
            raise NotUnderstood("a page is none of a known kind")
        if kind == _DICTIONARY:
            if pages:
                raise NotUnderstood("a dictionary comes behind values")
        else:
            of_page = number(header[field][1].get(1), -1)
            if of_page < 0:
                raise NotUnderstood("a page does not say how many values it has")
            values += of_page
            of_rows += number(header[8][1].get(3), -1) if kind == _DATA_V2 else 0
        pages += 1
        at += size
    if at != chunk.stop or values != chunk.values or of_rows not in (0, rows):
        raise NotUnderstood("the pages of a column do not fill its place")


def _header(at: int, stop: int, read: Callable[[int, int], bytes]) -> tuple[Struct, int]:
    size = _PROBE
    while True:
        size = min(size, stop - at)
        data = read(at, size)
        try:
            header, end = read_struct(data, 0, _HEADER)
        except NotUnderstood:
            if size == stop - at or size >= _MOST or len(data) < size:
                raise
            size *= 16
            continue
        return header, at + end


_BUFFER = 512 << 10  # more does not fit into the cache of a core, and is slower
_FIRST = 64 << 10  # bytes at the end of an object that most footers have room in
MOST_FOOTERS = 4 << 20  # bytes; parsed they take some thirty times as much memory
MOST_FETCHED = 64 << 20  # bytes of a row group that are in memory at once
REQUESTS = (
    24  # at most, for so many bytes of an object, and two more: where there are more, decoding takes fewer
)
_OF_BYTES = 128 << 20


class Chunks(Protocol):
    """Column chunks that can be written elsewhere."""

    footer: Footer

    def hand_on(self, start: int, stop: int, write: Callable[[memoryview], object]) -> None:
        """Hand the bytes of some chunks on that touch, in pieces that are valid during the call only."""
        ...


class RowGroups(Protocol):
    """Row groups of a file, of which the same columns are copied; they are taken in their order."""

    def take(self, number: int) -> Chunks:
        """Return the chunks of a row group; raises ``NotUnderstood`` unless they are made of pages, as they say."""
        ...


class ChunkFile:
    """An open file and its footer; raises ``NotUnderstood`` for one whose chunks must be decoded, with the reason.

    The file is the one that was planned with, from before its footer was read to when ``check_unchanged`` was called
    last, or that raises ``InputChanged``.
    """

    footer: Footer
    footer_size: int

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._state = check_unchanged(file)
        self._fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(self._fd).st_ino != self._state.inode:
                raise NotUnderstood("another file took its place")
            self._load(TAIL)
        except BaseException:
            self.close()
            raise

    def row_groups(self, numbers: Sequence[int], columns: Collection[str]) -> RowGroups:
        """Return the row groups of these numbers, of which columns are to be copied."""
        return _Checked(self, columns)

    def why_not_fetched(
        self, copied: Collection[str], read: Collection[str], spans: Sequence[tuple[int, int]]
    ) -> str:
        """Say why columns are not copied from where the file lies, while others are read; "" if they are.

        ``spans``: from which row group to which it is read at a time.
        """
        return ""

    def check(self, chunk: Chunk, rows: int) -> None:
        """Raise ``NotUnderstood`` if a chunk is not made of pages as its metadata say."""
        check_pages(chunk, rows, self._read)

    def hand_on(self, start: int, stop: int, write: Callable[[memoryview], object]) -> None:
        """Hand the bytes of a range on, in pieces that are valid during the call only."""
        buffer = memoryview(bytearray(min(_BUFFER, stop - start)))
        while start < stop:
            count = os.preadv(self._fd, [buffer[: stop - start]], start)
            if not count:
                self.check_unchanged()
                raise NotUnderstood("the file is cut short")
            write(buffer[:count])
            start += count

    def check_unchanged(self) -> None:
        """Raise ``InputChanged`` if the file is not what it was when it was opened."""
        check_unchanged(self._file, self._state)

    def chunks(self, number: int, columns: Collection[str]) -> Iterator[Chunk]:
        """Yield the chunks of some columns in a row group."""
        for name in columns:
            column = self.footer.column(name)
            assert column is not None, "it was there when its road was chosen"
            for leaf in column.leaves:
                yield self.footer.groups[number].chunks[leaf]

    def _load(self, first: int) -> None:
        """Read the footer: so many bytes at first, and more if it is longer."""
        size = self._file.size
        read = min(first, size)
        tail = self._read(size - read, read)
        length = read_tail(tail[-TAIL:], size)
        if length > MOST_FOOTERS:
            raise NotUnderstood("its footer is very long")
        end = size - TAIL - length
        at = len(tail) - TAIL - length
        self.footer = parse(tail[at:-TAIL] if at >= 0 else self._read(end, length), end)
        self.footer_size = length
        if why := why_not_copied(self.footer.created_by):
            raise NotUnderstood(why)

    def _read(self, start: int, size: int) -> bytes:
        data = os.pread(self._fd, size, start) if start >= 0 else b""
        if len(data) < size:
            raise NotUnderstood("the file is cut short")
        return data

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


class _Checked:
    def __init__(self, file: ChunkFile, columns: Collection[str]) -> None:
        self._file = file
        self._columns = columns

    def take(self, number: int) -> ChunkFile:
        rows = self._file.footer.groups[number].rows
        for chunk in self._file.chunks(number, self._columns):
            self._file.check(chunk, rows)
        return self._file


# ---------------------------------------------------------------- objects


class ChunkObject(ChunkFile):
    """An object and its footer. Each request says which version of it was planned with."""

    def __init__(self, file: InputFile) -> None:
        path = object_of(file.path)
        assert path is not None
        if REQUESTS * file.size < _OF_BYTES:
            raise NotUnderstood("it is a small object, and is fetched at once")
        self._file = file
        self._path = path
        self._state = check_unchanged(file)
        self._load(_FIRST)

    def row_groups(self, numbers: Sequence[int], columns: Collection[str]) -> RowGroups:
        """Return the row groups of these numbers: those that follow are asked for while one is taken."""
        return _Fetched(self, self._path, numbers, columns)

    def why_not_fetched(
        self, copied: Collection[str], read: Collection[str], spans: Sequence[tuple[int, int]]
    ) -> str:
        """Say why columns are not copied from where the object lies, while others are read; "" if they are."""
        places = [range(start, stop) for start, stop in spans]
        every = [self._places(span, copied) for span in places]
        for of_groups in (self._places(range(n, n + 1), copied) for span in places for n in span):
            if sum(stop - start for start, stop in of_groups) > MOST_FETCHED:
                return f"its row groups in the store are longer than {MOST_FETCHED >> 20} MiB"
        known = [name for name in read if self.footer.column(name) is not None]
        others = [self._places(span, known) for span in places]
        requests = 1 + sum(map(len, map(coalesced, others))) + len(coalesced(chain.from_iterable(every)))
        size = sum(
            stop - start for start, stop in {*chain.from_iterable(every), *chain.from_iterable(others)}
        )
        if requests > 2 + REQUESTS * size / _OF_BYTES:
            return (
                "what is read of it and what is copied lies in many places, and decoding takes fewer requests"
            )
        return ""

    def _places(self, numbers: range, columns: Collection[str]) -> list[tuple[int, int]]:
        return [(chunk.start, chunk.stop) for number in numbers for chunk in self.chunks(number, columns)]

    def _read(self, start: int, size: int) -> bytes:
        if start < 0 or start + size > self._file.size:
            raise NotUnderstood("the file is cut short")
        client, entry = self._path.opened()
        return bytes(client.fetch(entry, start, start + size)) if size else b""

    def hand_on(self, start: int, stop: int, write: Callable[[memoryview], object]) -> None:
        """Hand the bytes of a range on: fetched, if nobody has them."""
        write(memoryview(self._read(start, stop - start)))

    def close(self) -> None:
        """Nothing is open."""


class _Fetched:
    """Row groups of an object; those that are not taken are left out when a later one is."""

    def __init__(
        self, file: ChunkObject, path: ObjectPath, numbers: Sequence[int], columns: Collection[str]
    ) -> None:
        self._file = file
        self._columns = columns
        self._left = list(numbers)
        wanted = [(chunk.start, chunk.stop) for number in numbers for chunk in file.chunks(number, columns)]
        self._ranges = RangesAhead(path, wanted)

    def take(self, number: int) -> _FetchedGroup:
        if number not in self._left:
            raise NotUnderstood("its row groups come in another order")
        for skipped in self._left[: self._left.index(number)]:
            for chunk in self._file.chunks(skipped, self._columns):
                self._ranges.leave_out(chunk.start, chunk.stop)
        del self._left[: self._left.index(number) + 1]
        pieces: dict[int, memoryview] = {}
        for chunk in sorted(self._file.chunks(number, self._columns), key=lambda chunk: chunk.start):
            data = pieces[chunk.start] = self._ranges.take(chunk.start, chunk.stop)
            check_pages(chunk, self._file.footer.groups[number].rows, _reader(data, chunk.start))
        return _FetchedGroup(self._file.footer, pieces)


def _reader(data: memoryview, first: int) -> Callable[[int, int], bytes]:
    return lambda start, size: bytes(data[start - first : start - first + size])


class _FetchedGroup:
    def __init__(self, footer: Footer, pieces: dict[int, memoryview]) -> None:
        self.footer = footer
        self._pieces = pieces

    def hand_on(self, start: int, stop: int, write: Callable[[memoryview], object]) -> None:
        while start < stop:
            piece = self._pieces[start]
            write(piece)
            start += len(piece)
