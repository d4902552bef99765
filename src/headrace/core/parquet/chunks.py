"""A Parquet file on this machine whose column chunks are copied as they are."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.core.files.input_files import InputFile, check_unchanged
from headrace.core.parquet.compact import NotUnderstood
from headrace.core.parquet.footer import TAIL, Chunk, Footer, parse, read_tail, why_not_copied
from headrace.core.parquet.pages import check_pages
from headrace.core.stores.object_path import ObjectPath

_BUFFER = 512 << 10  # more does not fit into the cache of a core, and is slower
MOST_FOOTERS = 4 << 20  # bytes; parsed they take some thirty times as much memory


class ChunkFile:
    """An open file and its footer; raises ``NotUnderstood`` for one whose chunks must be decoded, with the reason.

    The file is the one that was planned with, from before its footer was read to when ``check_unchanged`` was called
    last, or that raises ``InputChanged``.
    """

    def __init__(self, file: InputFile) -> None:
        if isinstance(file.path, ObjectPath):
            raise NotUnderstood("it lies in an object store")
        self._file = file
        self._state = check_unchanged(file)
        self._fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(self._fd).st_ino != self._state.inode:
                raise NotUnderstood("another file took its place")
            length = read_tail(self._read(file.size - TAIL, TAIL), file.size)
            if length > MOST_FOOTERS:
                raise NotUnderstood("its footer is very long")
            self.footer_size = length
            end = file.size - TAIL - length
            self.footer: Footer = parse(self._read(end, length), end)
            if why := why_not_copied(self.footer.created_by):
                raise NotUnderstood(why)
        except BaseException:
            self.close()
            raise

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
