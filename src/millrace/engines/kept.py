"""Values that the driver keeps for workers: what was put, calls on their way, and what calls returned.

Each has a memory file of its own, if it has big buffers; a worker that is lent it gets the descriptor, once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millrace.engines.links import arriving, leaving
from millrace.errors import ExecutorClosed

if TYPE_CHECKING:
    from millrace.engines.parcel import Parcel

# `parcel` imports cloudpickle and numpy: inside the functions below, after the first workers have started.

FEWEST_FILES = 64


class Kept:
    """One value, pickled. It lives as long as anybody has it: a ``Ref``, a future, a call under way.

    ``owner`` gave it its number. ``links`` are the values that it refers to. ``known`` are the workers that were
    lent it; ``once``: they need it for one call, and forget it by themselves. ``size``: how many bytes it takes.
    """

    __slots__ = ("__weakref__", "_end", "known", "links", "number", "once", "owner", "size")

    def __init__(self, number: int, size: int, keeper: Keeper, *, fd: int = -1, once: bool = False) -> None:
        self.number = number
        self.size = size
        self.owner = keeper
        self.once = once
        self.links: tuple[Kept, ...] = ()
        self.known: set[int] = set()
        self._end = weakref.finalize(self, keeper.let_go, number, fd, self.known)
        self._end.atexit = False

    def value(self) -> Any:
        """Make the value again, with its buffers where they lie."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the memory now."""
        self._end()

    def _check(self) -> None:
        if not self._end.alive:
            raise ExecutorClosed("This value is gone: the executor that it was put to is shut down.")


class Filed(Kept):
    """A value with its big buffers in a memory file, or where there are too many of these, in ordinary memory."""

    __slots__ = ("_blob", "_parcel")

    def __init__(self, number: int, parcel: Parcel, keeper: Keeper, *, once: bool = False) -> None:
        self._parcel = parcel
        self._blob: bytearray | None = None
        if parcel.fd >= 0 and not keeper.room_for_files():
            self._blob = content(parcel.fd)
            os.close(parcel.fd)
            self._parcel = replace(parcel, fd=-1)
        if self._parcel.fd >= 0:
            keeper.files.add(number)
        size = len(parcel.pickled) + sum(size for _, size in parcel.places)
        super().__init__(number, size, keeper, fd=self._parcel.fd, once=once)

    def value(self) -> Any:
        """See ``Kept``."""
        from millrace.engines.parcel import unpack

        self._check()
        pickled, places = self._parcel.pickled, self._parcel.places
        with arriving(self.links):
            if self._blob is None:
                return unpack(pickled, places, os.dup(self._parcel.fd) if self._parcel.fd >= 0 else -1)
            view = memoryview(self._blob)
            return pickle.loads(pickled, buffers=[view[at : at + size] for at, size in places])

    @contextlib.contextmanager
    def to_send(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Lend the message that takes it to a worker, and the descriptor that goes with it or -1."""
        from millrace.engines.parcel import memory_file

        self._check()
        links = tuple(kept.number for kept in self.links)
        message = ("value", self.number, self._parcel.pickled, self._parcel.places, links)
        if self._blob is None:
            yield message, self._parcel.fd
            return
        fd = memory_file()
        try:
            _write(fd, self._blob)
            yield message, fd
        finally:
            os.close(fd)

    def close(self) -> None:
        """See ``Kept``."""
        super().close()
        self._blob = None


class Keeper:
    """Makes ``Kept`` values, and tells ``dropped(number, workers)`` when nobody has one any more.

    Memory files take descriptors, of which a process may have only so many: a fourth of them is used at most, and
    what comes beyond lies in ordinary memory of the driver.
    """

    def __init__(self, dropped: Callable[[int, set[int]], None]) -> None:
        self._dropped = dropped
        self._numbers = itertools.count()
        self._all: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()
        self.files: set[int] = set()
        self._put: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._adding = threading.Lock()
        self._most_files = most_files()

    def put(self, value: Any, *, once: bool = False) -> tuple[Kept, list[Any]]:
        """Pickle a value; return it, and the references that were met in it: ``links`` are for the caller to set."""
        with leaving() as met:
            packed = self._pack(value)
        kept = self._keep(packed, once)
        with self._adding:
            self._put.add(kept)
        return kept, met

    def take(self, packed: Any) -> Kept:
        """Keep what a worker returned."""
        kept = self._keep(packed, once=False)
        kept.links = tuple(self._all.get(number) or _gone(self) for number in packed.links)
        return kept

    def close(self) -> None:
        """Let go of all that was put. What workers returned belongs to those who have it."""
        with self._adding:
            put = list(self._put)
        for kept in put:
            kept.close()

    def room_for_files(self) -> bool:
        """Say whether there may be another memory file."""
        return len(self.files) < self._most_files

    def let_go(self, number: int, fd: int, known: set[int]) -> None:
        """Nobody has a value any more. Runs wherever the last reference goes, so it does little."""
        if fd >= 0:
            self.files.discard(number)
            os.close(fd)
        if known:
            self._dropped(number, known)

    def _keep(self, packed: Any, once: bool) -> Kept:
        kept = self._kept(next(self._numbers), packed, once)
        self._all[kept.number] = kept
        return kept

    def _pack(self, value: Any) -> Any:
        from millrace.engines.parcel import pack

        return pack(value)

    def _kept(self, number: int, packed: Any, once: bool) -> Kept:
        return Filed(number, packed, self, once=once)


def most_files() -> int:
    """Return how many memory files a process should have open for values, at most."""
    return max(FEWEST_FILES, _descriptors() // 4)


def _gone(keeper: Keeper) -> Kept:
    """Return a value that is not there any more."""
    from millrace.engines.parcel import Parcel

    kept = Filed(-1, Parcel(b"", (), -1), keeper)
    kept.close()
    return kept


def content(fd: int) -> bytearray:
    """Return all that is in a file."""
    read = bytearray(os.fstat(fd).st_size)
    view, at = memoryview(read), 0
    while at < len(read):
        at += os.preadv(fd, [view[at : at + (1 << 30)]], at)
    return read


def _write(fd: int, content: bytearray) -> None:
    view, at = memoryview(content), 0
    while at < len(content):
        at += os.pwrite(fd, view[at : at + (1 << 30)], at)


def _descriptors() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
