"""Objects that are read as files are: whole, in streams, and in ranges that are known beforehand.

Every request says which content was planned with (``If-Match``): what changed meanwhile is an error, not other bytes.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from headrace.core.stores.addresses import Address, Options, parse

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.stores.clients import Client, Entry


class ObjectPath(str):
    """The address of an object, with its size and version as they were when the input was listed."""

    __slots__ = ("options", "size", "version")

    size: int
    version: str
    options: Options

    @classmethod
    def of(cls, address: Address, entry: Entry, options: Options) -> ObjectPath:
        """Return the path of an object of a listing."""
        path = cls(address._replace(key=entry.key))
        path.size, path.version, path.options = entry.size, entry.version, options
        return path

    @property
    def number(self) -> int:
        """The version as a number: where files have their time of change."""
        import hashlib

        return int.from_bytes(hashlib.blake2b(self.version.encode(), digest_size=7).digest(), "big")

    def opened(self) -> tuple[Client, Entry]:
        """Return the client of the object's store, and what to ask it for."""
        from headrace.core.stores.clients import Entry, client_for  # only where objects are read

        address = parse(self)
        return client_for(address, self.options), Entry(address.key, self.size, self.version)

    def content(self) -> bytes | memoryview:
        """Return all bytes."""
        client, entry = self.opened()
        return client.fetch(entry, 0, entry.size)


def object_of(path: str) -> ObjectPath | None:
    """Return the object that a path is the address of, None for a file of this machine. Nobody else asks."""
    return path if isinstance(path, ObjectPath) else None


REQUEST = 16 << 20  # the most bytes that one request asks for
_GAP = 1 << 20  # bytes between two wanted ranges that are cheaper to read than another request
_FIRST = 64 << 10
_AHEAD = 64 << 20  # bytes that are asked for before they are wanted
_AT_ONCE = 32  # requests


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-objects")


def open_binary(path: str) -> BinaryIO:
    """Open a file, or an object, for reading bytes."""
    there = object_of(path)
    return (
        open(path, "rb")
        if there is None
        else cast("BinaryIO", io.BufferedReader(ObjectReader(there), _FIRST))
    )


def open_arrow(path: str) -> pa.NativeFile:
    """Open a file, or an object, for Arrow."""
    import pyarrow as pa

    there = object_of(path)
    return pa.OSFile(path, "rb") if there is None else pa.PythonFile(ObjectReader(there), "r")


def open_range(path: str, start: int, stop: int) -> pa.NativeFile:
    """Open a range of bytes of a file, or of an object, for Arrow."""
    import pyarrow as pa

    there = object_of(path)
    if there is None:
        return pa.OSFile(path, "rb").get_stream(start, stop - start)
    reader = ObjectReader(there, start, stop)
    reader.expect([(start, stop)])
    return pa.PythonFile(reader, "r")


def contents(paths: Sequence[str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of files, or of objects: many at a time. Raises ``OSError`` for a file."""
    waiting: deque[Future[bytes | memoryview]] = deque()
    for path in paths:
        there = object_of(path)
        if there is not None:
            waiting.append(_threads().submit(there.content))
        while waiting and (there is None or len(waiting) >= 2 * _AT_ONCE):
            yield waiting.popleft().result()
        if there is None:
            with open(path, "rb") as file:
                yield file.read()
    while waiting:
        yield waiting.popleft().result()


def coalesced(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges with small gaps between them, and cut what is long.

    >>> coalesced([(0, 10), (20, 30), (5_000_000, 5_000_010)])
    [(0, 30), (5000000, 5000010)]
    """
    joined: list[list[int]] = []
    for start, stop in sorted(ranges):
        if joined and start - joined[-1][1] <= _GAP:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    found: list[tuple[int, int]] = []
    for start, stop in joined:
        pieces = max(1, -(-(stop - start) // REQUEST))
        edges = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
        found += itertools.pairwise(edges)
    return found


class _Span:
    """Bytes that were asked for, and how many of them were not read yet."""

    def __init__(self, start: int, stop: int, *, expected: bool = False) -> None:
        self.start, self.stop, self.expected = start, stop, expected
        self.data: Future[bytes | memoryview] | None = None
        self.left = stop - start


class RangesAhead:
    """Ranges of an object that are taken one by one: asked for in few requests, ahead of time.

    Some 64 MiB are asked for before they are wanted. Used by one thread at a time.
    """

    def __init__(self, path: ObjectPath, ranges: Sequence[tuple[int, int]]) -> None:
        self._client, self._entry = path.opened()
        self._spans = [_Span(start, stop, expected=True) for start, stop in coalesced(ranges)]
        for span in self._spans:
            span.left = sum(_shared(span, *each) for each in ranges)

    def take(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a range."""
        pieces = []
        for span in self._over(start, stop):
            _ask(self._client, self._entry, span)
            _ask_ahead(self._client, self._entry, self._spans)
            assert span.data is not None
            pieces.append(
                memoryview(span.data.result())[max(start - span.start, 0) : min(stop, span.stop) - span.start]
            )
        self.leave_out(start, stop)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def leave_out(self, start: int, stop: int) -> None:
        """Let go of a range that is not, or no longer, wanted."""
        for span in self._over(start, stop):
            span.left -= _shared(span, start, stop)
            if span.left <= 0:
                self._spans.remove(span)

    def _over(self, start: int, stop: int) -> list[_Span]:
        return [span for span in self._spans if _shared(span, start, stop)]


def _shared(span: _Span, start: int, stop: int) -> int:
    return max(0, min(span.stop, stop) - max(span.start, start))


def _ask_ahead(client: Client, entry: Entry, spans: Iterable[_Span]) -> None:
    asked = 0
    for span in spans:
        asked += span.stop - span.start
        if asked > _AHEAD and asked > span.stop - span.start:
            break
        _ask(client, entry, span)


def _ask(client: Client, entry: Entry, span: _Span) -> None:
    if span.data is None:
        span.data = _threads().submit(client.fetch, entry, span.start, span.stop)


class ObjectReader(io.RawIOBase):
    """An object as a file. Reads one behind another are answered by fewer, larger requests, made ahead.

    ``start`` and ``stop`` make a part of the object the whole of the file. Used by one thread at a time.
    """

    def __init__(self, path: ObjectPath, start: int = 0, stop: int | None = None) -> None:
        self._client, self._entry = path.opened()
        self._base = start
        self._end = self._entry.size if stop is None else min(stop, self._entry.size)
        self._at = start
        self._spans: list[_Span] = []
        self._window = _FIRST
        self._sequential = start

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Say which bytes of the object will be read next: they are asked for in few requests, ahead of time.

        Those that came with an earlier request, such as the whole of a small object, are not asked for again.
        """
        wanted, held = list(ranges), []
        for span in self._spans:
            inside = [each for each in wanted if span.start <= each[0] and each[1] <= span.stop]
            if inside:
                span.expected, span.left = True, sum(stop - start for start, stop in inside)
                held.append(span)
                wanted = [each for each in wanted if each not in inside]
        self._spans = held + [_Span(start, stop, expected=True) for start, stop in coalesced(wanted)]
        _ask_ahead(self._client, self._entry, self._spans)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the present place."""
        return self._at - self._base

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        origin = (self._base, self._at, self._end)[whence]
        self._at = max(self._base, origin + offset)
        return self._at - self._base

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as the buffer holds, fewer only at the end."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Read ``size`` bytes, fewer only at the end."""
        wanted = self._end - self._at if size is None or size < 0 else size
        stop = min(self._at + max(0, wanted), self._end)
        pieces: list[bytes | memoryview] = []
        at = self._at
        while at < stop:
            piece = self._piece(at, stop)
            pieces.append(piece)
            at += len(piece)
        self._at = max(self._at, at)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, at: int, stop: int) -> bytes | memoryview:
        """Return bytes from ``at`` on, up to ``stop`` or fewer."""
        span = next((span for span in self._spans if span.start <= at < span.stop), None)
        if span is None:
            span = self._miss(at, stop)
        _ask(self._client, self._entry, span)
        assert span.data is not None
        data = memoryview(span.data.result())[at - span.start : stop - span.start]
        span.left -= len(data)
        small = span.stop - span.start <= _FIRST and not span.expected  # it may be expected yet
        if span.left <= 0 and not small:
            self._spans.remove(span)
            _ask_ahead(self._client, self._entry, self._spans)
        return data

    def _miss(self, at: int, stop: int) -> _Span:
        """Ask for bytes that nobody expected: more and more of them while one read follows another."""
        follows = at == self._sequential
        self._window = min(self._window * 4, REQUEST) if follows else _FIRST
        self._spans = [span for span in self._spans if span.expected]
        end = min(max(stop, at + self._window), self._end)
        spans = [_Span(start, to) for start, to in coalesced([(at, end)])]
        if self._window == REQUEST and end < self._end:  # surely a long way to go: one request ahead
            spans.append(_Span(end, min(end + REQUEST, self._end)))
        for span in spans:
            _ask(self._client, self._entry, span)
        self._spans += spans
        self._sequential = spans[-1].stop
        return spans[0]

    def close(self) -> None:
        """Drop what was read ahead."""
        self._spans = []
        super().close()
