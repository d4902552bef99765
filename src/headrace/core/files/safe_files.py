"""The one way to a file in an output folder.

What stands in an output may be anybody's work: an archive that was unpacked, a folder that others may write to. So
nothing there is opened but regular files under their only name: a link would lead what we write, cut or remove to
somebody else's file, and a pipe would be waited for, for ever. No other module opens anything in an output folder;
a test sees to that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import IO

from headrace.errors import OutputWriteFailed

AnyPath = str | os.PathLike[str]

_BIG_HOLE = 16 << 20
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LINKED = (errno.ELOOP, errno.EMLINK)  # what systems say of a link that is not to be followed
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


TEMPORARY = ".tmp"
"""The suffix of a file that is being written and has no name of its own yet."""


KEPT = "kept"
"""The folder of a run for what models keep until the run has ended."""


class NotOurs(OSError):
    """Something that no run has put there: it is not opened."""

    def __init__(self, path: AnyPath, what: str) -> None:
        super().__init__(errno.EINVAL, f"it is {what}, which no run puts there", os.fspath(path))


def opened(path: AnyPath, flags: int, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor; never follows a link at its end, and never waits.

    Raises ``NotOurs`` for anything else that stands there, and for a file with a second name that would be written
    to. ``O_TRUNC`` is not for here: it cuts before anybody has looked.
    """
    try:
        fd = os.open(path, flags | _SAFE, mode)
    except OSError as error:
        if error.errno in (*_LINKED, errno.ENXIO):  # ENXIO: a pipe or socket that nobody reads
            raise NotOurs(path, _kind(path)) from None
        raise
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise NotOurs(path, _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file"))
    if status.st_nlink > 1 and flags & os.O_ACCMODE != os.O_RDONLY:
        os.close(fd)
        raise NotOurs(path, "a file with a second name (a hard link)")
    return fd


def check(path: AnyPath) -> None:
    """Raise ``NotOurs`` for anything but a regular file under its only name, or nothing: before a library opens it.

    It is not opened for that. To close it would end the locks that this process has there, such as those of SQLite.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise NotOurs(path, _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file"))
    if status.st_nlink > 1:
        raise NotOurs(path, "a file with a second name (a hard link)")


def file(path: AnyPath) -> IO[bytes]:
    """Open a file for reading."""
    return open(opened(path, os.O_RDONLY), "rb")


def content(path: AnyPath, most: int = -1) -> bytes:
    """Return what is in a file, or its first bytes; raises ``OSError`` if it is not there, or is no regular file."""
    with file(path) as opened_file:
        if most < 0 and _end_of_data(opened_file.fileno()) >= 0:
            raise NotOurs(path, "a file with a big hole in it")
        return opened_file.read(most)


def read(path: AnyPath, start: int = 0) -> bytes:
    """Return what is in a file from byte ``start`` on, up to a big hole; nothing if no regular file is there."""
    try:
        with file(path) as opened_file:
            end = _end_of_data(opened_file.fileno())
            opened_file.seek(start)
            return opened_file.read(max(0, end - start) if end >= 0 else -1)
    except OSError:
        return b""


def _end_of_data(fd: int) -> int:
    """Return where a hole of more than 16 MiB begins in an open file; -1 if there is none. Nobody reads gigabytes of
    zeros that take up no space."""
    size, at = os.fstat(fd).st_size, 0
    if size < _BIG_HOLE or not hasattr(os, "SEEK_HOLE"):
        return -1
    try:
        while (hole := os.lseek(fd, at, os.SEEK_HOLE)) < size:
            try:
                at = os.lseek(fd, hole, os.SEEK_DATA)
            except OSError:  # nothing but the hole up to the end
                at = size
            if at - hole > _BIG_HOLE:
                return hole
        return -1
    finally:
        os.lseek(fd, 0, os.SEEK_SET)


def mapped(path: AnyPath) -> memoryview:
    """Return the bytes of a file, which are read as they are looked at."""
    fd = opened(path, os.O_RDONLY)
    try:
        return view(fd)
    finally:
        os.close(fd)


def view(fd: int) -> memoryview:
    """Return the bytes of an open file, which are read as they are looked at."""
    import mmap  # not for a program that only imports us

    size = os.fstat(fd).st_size
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b"")


def size(path: AnyPath) -> int:
    """Return the bytes of a regular file; -1 if none stands there."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def write(path: AnyPath, data: bytes, *, lasting: bool = True) -> None:
    """Write a small file so that a reader or a crash finds all of it or what was there before.

    ``lasting``: its bytes outlive a loss of power, once its folder is synced.
    """
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        create(temporary, data, lasting=lasting)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def create(path: AnyPath, data: bytes, *, lasting: bool = True) -> None:
    """Write a file that is not there yet."""
    with open(opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as made:
        made.write(data)
        made.flush()
        if lasting:
            sync_fd(made.fileno())


def new_file(path: AnyPath) -> IO[bytes]:
    """Make a file that is not there yet, and open it for writing and reading."""
    return open(opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")


def make_folder(path: AnyPath, mode: int = 0o777) -> None:
    """Make a folder if it is not there; raises ``NotOurs`` if something else is, such as a link to one."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    check_folder(path)


def check_folder(path: AnyPath) -> None:
    """Raise ``NotOurs`` if something stands there that is no folder, such as a link to one."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # nothing: it may be on its way, or just gone
        return
    if not stat.S_ISDIR(mode):
        raise NotOurs(path, _KINDS.get(stat.S_IFMT(mode), "a file"))


def is_at(path: AnyPath, fd: int) -> bool:
    """Say whether an open file still is the one at a path: it may have been removed, and another made there."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def is_folder(path: AnyPath) -> bool:
    """Say whether a folder stands there; what a link leads to is not ours."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _kind(path: AnyPath) -> str:
    with contextlib.suppress(OSError):
        mode = os.lstat(path).st_mode
        return _KINDS.get(stat.S_IFMT(mode), "a file")
    return "no regular file"


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


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], doing: str) -> Iterator[None]:
    """Raise ``OutputWriteFailed`` where the system refuses what is done with ``path`` within."""
    try:
        yield
    except OSError as error:
        raise write_failed(error, path, doing) from error


def write_failed(error: OSError, path: str | os.PathLike[str], doing: str) -> OutputWriteFailed:
    """Return the error for a failed call of the system: what failed, on which file, and what to do."""
    code = error.errno or 0
    reason = f"{os.strerror(code)} [{errno.errorcode.get(code, code)}]" if code else str(error)
    advice = _ADVICE.get(code, f"Fix the cause {_RERUN}")
    return OutputWriteFailed(f"Cannot {doing} {path}: {reason}. {advice}")
