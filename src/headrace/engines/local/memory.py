"""The private memory of processes, read from /proc; 0 where there is none."""

from __future__ import annotations

import os
from collections.abc import Sequence

_ANONYMOUS = b"\nRssAnon:"
_SWAPPED = b"\nVmSwap:"
_SHARE = b"\nPss_Anon:"
_SWAPPED_SHARE = b"\nSwapPss:"


def own(pid: int) -> int:
    """Return the private memory of a process in bytes: anonymous pages, those swapped out among them.

    Files that are mapped do not count, nor does shared memory, be it mapped for writing.
    """
    status = _read(f"/proc/{pid}/status")
    return _kib(status, _ANONYMOUS) + _kib(status, _SWAPPED)


def family(pid: int) -> int:
    """Return the private memory of a process and of those that its main thread started, each page once."""
    return of(_family(pid))


def of(members: Sequence[int]) -> int:
    """Return the private memory of some processes, each page once."""
    if len(members) == 1:
        return own(members[0])
    # Slow, but it knows what forks share.
    shares = [_read(f"/proc/{member}/smaps_rollup") for member in members]
    return sum(_kib(share, _SHARE) + _kib(share, _SWAPPED_SHARE) for share in shares)


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        members += map(int, _read(f"/proc/{member}/task/{member}/children").split())
    return members


def _kib(text: bytes, name: bytes) -> int:
    """Return the bytes of a line of the form ``name: 12 kB``."""
    at = text.find(name)
    return int(text[at + len(name) : text.index(b"kB", at)]) << 10 if at >= 0 else 0


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""  # the process has just ended
    finally:
        os.close(fd)
