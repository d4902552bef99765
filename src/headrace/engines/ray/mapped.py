"""Memory of Ray's store as a library may have it that writes: a page that it writes to becomes its own.

Ray maps its store writable and shared in every worker, and only numpy knows not to write there. A library that
does so all the same, such as torch, would change the values of all workers of the machine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

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


class _Region:
    """A shared mapping of this process."""

    def __init__(self, start: int, end: int, offset: int, inode: int) -> None:
        self.start = start
        self.end = end
        self.offset = offset
        self.inode = inode


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
