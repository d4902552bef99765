"""Input files as they were planned with, and whether they still are what they were."""

from __future__ import annotations

import os
from typing import NamedTuple

from headrace.core.stores.object_path import ObjectPath
from headrace.errors import InputChanged, UnreadableFile

_ADVICE = "Run again to plan with the input as it is now; files must not change while they are read."


class InputFile(NamedTuple):
    """A file as it was when the input was listed; of an object, ``mtime_ns`` is a number made of its version."""

    path: str
    size: int
    mtime_ns: int


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
    a further link change that time, too, and are no change of the content. An object is not asked for: whoever
    reads it says which version is meant.
    """
    if isinstance(file.path, ObjectPath):
        return _OF_OBJECTS
    try:
        status = os.stat(file.path)
    except FileNotFoundError as error:
        raise InputChanged(
            f"Input file {file.path!r} is gone since the run was planned. {_ADVICE}"
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
    state = _state(status)
    if state.size != file.size or state.mtime_ns != file.mtime_ns:
        _compared(file, status, None)
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
    if before is not None and now.ctime_ns != before.ctime_ns:
        if now.inode == before.inode and now.access != before.access:
            return now
        what = "another file took its place" if now.inode != before.inode else "it was written to"
        raise InputChanged(
            f"Input file {file.path!r} changed while it was read: {what}, although its size and time of change are "
            f"as before. {_ADVICE}"
        )
    return now


def _time(mtime_ns: int) -> str:
    from datetime import datetime, timezone

    moment = datetime.fromtimestamp(mtime_ns // 10**9, tz=timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{mtime_ns % 10**9:09d} UTC"
