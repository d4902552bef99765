"""The one way to a disk: what is synced here outlives a loss of power."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

_NO_SUCH_CALL = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)  # some network file systems


def sync_fd(fd: int) -> None:
    """Make a file's bytes, or a folder's names, last. On macOS plain fsync stops at the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(fd)
        return
    try:
        fcntl.fcntl(fd, full)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:  # a sync that failed is never tried again
            raise
        os.fsync(fd)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder last, where the file system has such a call."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        try:
            sync_fd(fd)
        except OSError as error:
            if error.errno not in _NO_SUCH_CALL:
                raise
