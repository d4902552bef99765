"""Values that an executor's driver stores for workers, in Ray's object store; small ones travel with the calls."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
import ray.exceptions

from headrace.annex.ray.cluster import first_line
from headrace.engines.object_store import Message, ObjectStore, StoredObject
from headrace.engines.out_of_band_pickle import SMALL, apart
from headrace.engines.references import resolving_references
from headrace.errors import NodeLost


@dataclass(frozen=True, slots=True)
class RayPickle:
    """What was put or returned: pickled here, or ``reference`` is to a pickle and its buffers in Ray's store."""

    pickled: bytes
    reference: Any
    size: int


class RayObject(StoredObject):
    """A value in the object store, or a small one in the driver."""

    __slots__ = ("_packed",)

    def __init__(self, number: int, packed: RayPickle, store: ObjectStore, *, once: bool = False) -> None:
        super().__init__(number, packed.size, store, once=once)
        self._packed: RayPickle | None = packed

    def value(self) -> Any:
        """See ``StoredObject``. Raises ``NodeLost`` if it went with the machine that it lay on."""
        self._check_alive()
        assert self._packed is not None
        pickled, buffers = self._packed.pickled, []
        if self._packed.reference is not None:
            try:
                pickled, buffers = ray.get(self._packed.reference)
            except ray.exceptions.RayError as error:
                raise NodeLost(
                    f"The value is lost, with the machine that it lay on: {first_line(error)}. Make the call again."
                ) from error
        with resolving_references(self.links):
            return pickle.loads(pickled, buffers=private(buffers))

    @contextlib.contextmanager
    def to_send(self) -> Iterator[tuple[Message, dict[int, Any]]]:
        """See ``StoredObject``: with Ray's reference, by number."""
        self._check_alive()
        assert self._packed is not None
        links = tuple(linked.number for linked in self.links)
        message = ("value", self.number, self._packed.pickled, links)
        yield message, {} if self._packed.reference is None else {self.number: self._packed.reference}

    def close(self) -> None:
        """See ``StoredObject``."""
        super().close()
        self._packed = None


def lent(values: Sequence[StoredObject]) -> tuple[tuple[int, ...], list[tuple[Message, dict[int, Any]]]]:
    """Return the numbers of values that a pool's workers need, and the messages that take them there."""
    messages = []
    for each in dict.fromkeys(linked for value in values for linked in value.with_linked()):
        with each.to_send() as message:
            messages.append(message)
    return tuple(value.number for value in values), messages


class RayObjectStore(ObjectStore):
    """See ``ObjectStore``."""

    def _pack(self, value: Any) -> RayPickle:
        pickled, buffers = apart(value)
        size = len(pickled) + sum(buffer.nbytes for buffer in buffers)
        if size <= SMALL:
            return RayPickle(pickled, None, size)
        return RayPickle(b"", ray.put((pickled, buffers)), size)

    def _stored(self, number: int, packed: Any, once: bool) -> StoredObject:
        return RayObject(number, packed, self, once=once)


Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (\S+) (\d+)")


class _Mapped(mmap.mmap):
    """A private view of a part of the store; ``held`` keeps what lies there from being moved or replaced."""

    held: Any = None


def private(buffers: Sequence[Bytes]) -> list[Any]:
    """Return buffers with the same bytes, which may be written to and change nothing elsewhere.

    They are views of the same memory until they are written to; copies where that cannot be had.
    """
    if not buffers:
        return []
    try:
        mapped = _mapped(buffers)
    except (OSError, ValueError):  # no /proc, another user's raylet, …
        mapped = None
    return mapped if mapped is not None else [bytearray(buffer) for buffer in buffers]


def _mapped(buffers: Sequence[Bytes]) -> list[memoryview] | None:
    starts = [buffer.ctypes.data for buffer in buffers]
    first = min(starts)
    last = max(start + buffer.nbytes for start, buffer in zip(starts, buffers, strict=True))
    region = _region(first)
    if region is None or last > region.end:
        return None
    fd = _open(region)
    if fd < 0:
        return None
    try:
        at = region.offset + first - region.start
        begin = at - at % mmap.ALLOCATIONGRANULARITY
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        size = at - begin + last - first
        mapped = _Mapped(fd, size, flags=mmap.MAP_PRIVATE, prot=protection, offset=begin)
    finally:
        os.close(fd)
    mapped.held = list(buffers)
    view = memoryview(mapped)
    places = [start - first + at - begin for start in starts]
    return [view[place : place + buffer.nbytes] for place, buffer in zip(places, buffers, strict=True)]


class _Region(NamedTuple):
    """A shared mapping of this process."""

    start: int
    end: int
    offset: int
    inode: int


def _region(address: int) -> _Region | None:
    """Return the shared mapping that an address is in, if it is in one."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            found = _REGION.match(line)
            if found is None:
                continue
            start, end = int(found[1], 16), int(found[2], 16)
            if start <= address < end:
                shared = found[3].endswith("s")
                return _Region(start, end, int(found[4], 16), int(found[6])) if shared else None
    return None


def _open(region: _Region) -> int:
    """Open the file of a mapping, now nameless, by way of a raylet, our parent as a rule. -1: there is none."""
    for process in (str(os.getppid()), *_raylets()):
        folder = f"/proc/{process}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = f"{folder}/{name}"
                if "plasma" in os.readlink(path) and os.stat(path).st_ino == region.inode:
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _raylets() -> Iterator[str]:
    for process in os.listdir("/proc"):
        if process.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{process}/comm") as comm:
                if comm.read().strip() == "raylet":
                    yield process
