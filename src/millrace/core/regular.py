"""Files that we write and read beside a run, whatever stands in their place: a link, a folder, a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def opened(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor; never follows a link at its end, and never waits.

    Raises ``OSError`` for anything else that stands there: a link, a folder, a pipe, a device.
    """
    fd = os.open(path, flags | _SAFE, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return fd


def read(path: Path, start: int = 0) -> bytes:
    """Return what is in a file from byte ``start`` on; nothing if it is not there, or is no regular file."""
    try:
        fd = opened(path, os.O_RDONLY)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        file.seek(start)
        return file.read()
