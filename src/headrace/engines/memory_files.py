"""Memory files: read and written whole, and how many a process may have open."""

from __future__ import annotations

import os

FEWEST_FILES = 64


def most_files() -> int:
    """Return how many memory files a process should have open for values, at most."""
    return max(FEWEST_FILES, _descriptors() // 4)


def content(fd: int) -> bytearray:
    """Return all that is in a file."""
    read = bytearray(os.fstat(fd).st_size)
    view, at = memoryview(read), 0
    while at < len(read):
        at += os.preadv(fd, [view[at : at + (1 << 30)]], at)
    return read


def write_all(fd: int, content: bytearray) -> None:
    """Write all of it, from the start of a file."""
    view, at = memoryview(content), 0
    while at < len(content):
        at += os.pwrite(fd, view[at : at + (1 << 30)], at)


def _descriptors() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
