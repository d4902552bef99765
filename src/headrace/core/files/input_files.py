"""Input files as they were planned with, and whether they still are what they were."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC
from typing import NamedTuple

from headrace.core.stores.objects import object_of
from headrace.errors import InputChanged, UnreadableFile

_ADVICE = "Run again to plan with the input as it is now; files must not change while they are read."


_WHOLE = 64 << 10  # bytes; of a bigger file, as many are looked at
_SAMPLES = 16


class Mark(NamedTuple):
    """What tells a local file from another one of its size and time, and whether it only was touched or copied.

    ``digest``: of its content, or of samples of a bigger one; empty where none was taken.
    """

    ctime_ns: int = 0
    inode: int = 0
    digest: bytes = b""


UNMARKED = Mark()


class InputFile(NamedTuple):
    """A file as it was when the input was listed; of an object, ``mtime_ns`` is a number made of its version."""

    path: str
    size: int
    mtime_ns: int
    mark: Mark = UNMARKED

    @property
    def in_store(self) -> bool:
        """True for an object, which takes a request to look at; False for a file of this machine."""
        return object_of(self.path) is not None


class FileState(NamedTuple):
    """What the system says of a file's changes. ``access`` is who may do what with it, and how many names it has."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    access: tuple[int, int, int, int]


_OF_OBJECTS = FileState(0, 0, 0, 0, (0, 0, 0, 0))


def check_unchanged(file: InputFile, before: FileState | None = None) -> FileState:
    """Return the state of a file; raise ``InputChanged`` unless it is as it was when the input was listed.

    ``before`` is its state when reading began. It tells of a file of the same size whose old time was set again: the
    time at which the system last changed anything about a file cannot be set. Other permissions, another owner or
    a further link change that time, too, and are no change of the content. Without ``before``, the file's mark is
    what tells. An object is not asked for: whoever reads it says which version is meant.
    """
    if file.in_store:
        return _OF_OBJECTS
    try:
        status = os.stat(file.path)
    except FileNotFoundError as error:
        raise InputChanged(
            f"Input file {file.path!r} is gone since the run was planned, or this machine, {os.uname().nodename}, "
            f"does not see it. On a cluster, input and output lie where all machines find them. {_ADVICE}"
        ) from error
    except OSError as error:
        raise UnreadableFile(f"Cannot look at input file {file.path!r}: {error.strerror}.") from error
    if before is not None and before == _state(status):
        return before
    return _compared(file, status, before)


def content_of(file: InputFile) -> tuple[bytes | None, FileState]:
    """Return the content of a small local file, and its state as ``check_unchanged`` does, of one opening.

    None: it could not be opened, or not all of it was read at once; it was not changed.
    """
    try:
        handle = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None, check_unchanged(file)
    try:
        status = os.fstat(handle)
        content = os.read(handle, file.size + 1)
    except OSError:
        return None, check_unchanged(file)
    finally:
        os.close(handle)
    state = _compared(file, status, None)
    return content if len(content) == file.size else None, state


def _state(status: os.stat_result) -> FileState:
    access = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink)
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, access)


def _compared(file: InputFile, status: os.stat_result, before: FileState | None) -> FileState:
    changes = []
    if status.st_size != file.size:
        changes.append(f"its size was {file.size:,} bytes and is {status.st_size:,}")
    if status.st_mtime_ns != file.mtime_ns:
        changes.append(f"its time of change was {_time(file.mtime_ns)} and is {_time(status.st_mtime_ns)}")
    if changes:
        told = " and ".join(changes)
        raise InputChanged(f"Input file {file.path!r} changed since the run was planned: {told}. {_ADVICE}")
    now = _state(status)
    if before is None and _is_same_content(file.path, file.size, file.mark, status) is False:
        raise InputChanged(
            f"Input file {file.path!r} changed since the run was planned: its content is another, although its size "
            f"and time of change are as before. {_ADVICE}"
        )
    if before is not None and now.ctime_ns != before.ctime_ns:
        if now.inode == before.inode and now.access != before.access:
            return now
        what = "another file took its place" if now.inode != before.inode else "it was written to"
        raise InputChanged(
            f"Input file {file.path!r} changed while it was read: {what}, although its size and time of change are "
            f"as before. {_ADVICE}"
        )
    return now


def mark_of(path: str, size: int, mtime_ns: int, *, digests: bool) -> Mark:
    """Return the mark of a listed file; an empty one of an object, and of a file that is another by now."""
    if not path.startswith("/"):
        return UNMARKED
    try:
        status = os.stat(path)
        if status.st_size != size or status.st_mtime_ns != mtime_ns:
            return UNMARKED
        digest = _digest(path, size) if digests else b""
        if digest and os.stat(path).st_ctime_ns != status.st_ctime_ns:
            return UNMARKED
    except OSError:
        return UNMARKED
    return Mark(status.st_ctime_ns, status.st_ino, digest)


def is_same_content(path: str, size: int, mark: Mark) -> bool | None:
    """Say whether a file of the same size and time has the content that it was marked with; None: nobody knows.

    Of a file without a mark, and of one that nobody can look at now, size and time say all.
    """
    try:
        return _is_same_content(path, size, mark, os.stat(path)) if mark.inode else True
    except OSError:  # the table that lists it has dropped it, perhaps
        return True


def _is_same_content(path: str, size: int, mark: Mark, status: os.stat_result) -> bool | None:
    if (status.st_ctime_ns, status.st_ino) == mark[:2]:
        return True
    try:
        return _digest(path, size) == mark.digest if mark.digest else None
    except OSError:  # whoever reads it says so
        return True


def _digest(path: str, size: int) -> bytes:
    """Return a digest of a file's content; of one of more than 64 KiB, of samples, the first and last bytes too."""
    digest = hashlib.blake2b(digest_size=16)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if size <= _WHOLE:
            digest.update(os.read(handle, size + 1))
        else:
            length = _WHOLE // _SAMPLES
            for number in range(_SAMPLES):
                digest.update(os.pread(handle, length, (size - length) * number // (_SAMPLES - 1)))
    finally:
        os.close(handle)
    return digest.digest()


def _time(mtime_ns: int) -> str:
    from datetime import datetime

    moment = datetime.fromtimestamp(mtime_ns // 10**9, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{mtime_ns % 10**9:09d} UTC"
