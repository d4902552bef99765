"""The one way to a disk: what is synced here outlives a loss of power."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from headrace.errors import OutputWriteFailed

_NO_SUCH_CALL = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)  # some network file systems
_RERUN = "and run the same command again: finished work is kept."
_ADVICE = {
    errno.ENOSPC: f"Free some space {_RERUN}",
    errno.EDQUOT: f"Raise the quota or free some space {_RERUN}",
    errno.EFBIG: f"Raise the file size limit (ulimit -f) {_RERUN}",
    errno.EROFS: "The file system is mounted read-only: choose another output folder or remount it.",
    errno.EACCES: "Give this user permission to write there, or choose another output folder.",
    errno.EPERM: "Give this user permission to write there, or choose another output folder.",
    errno.EIO: f"The device failed, and a sync that failed cannot be trusted twice. Check the disk {_RERUN}",
    errno.ENOENT: "The folder was removed or moved during the run. Run the same command again.",
}


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


def write_failed(error: OSError, path: str | os.PathLike[str], doing: str) -> OutputWriteFailed:
    """Return the error for a failed call of the system: what failed, on which file, and what to do."""
    code = error.errno or 0
    reason = f"{os.strerror(code)} [{errno.errorcode.get(code, code)}]" if code else str(error)
    advice = _ADVICE.get(code, f"Fix the cause {_RERUN}")
    return OutputWriteFailed(f"Cannot {doing} {path}: {reason}. {advice}")
