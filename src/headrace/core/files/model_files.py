"""Files that a stranger made: read with limits on their kind, their size and how deep they nest."""

from __future__ import annotations

import json
import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from typing import IO, Any

from headrace.core.human import size

MOST = 32 << 20
"""Bytes of a configuration. The biggest that are known, indexes of sharded weights, have some 10 MB."""
_MOST_FILES = 100_000
_INFLATED = 256 << 20


class NotReadable(ValueError):
    """A file that is not what it should be; says why, as the end of a sentence."""


def open_regular(path: str) -> IO[bytes]:
    """Open a regular file, or one that a link leads to; never wait for a pipe, never read a device.

    Raises ``NotReadable`` for all else, ``OSError`` if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotReadable("it is not a regular file")
    return open(descriptor, "rb", buffering=0)


def content(path: str, *, most: int = MOST) -> bytes:
    """Return the bytes of a small file. Raises ``NotReadable`` if it is bigger than ``most``, or no file."""
    with open_regular(path) as file:
        return limited(file, most=most)


def limited(file: IO[bytes], *, most: int = MOST) -> bytes:
    """Read an open file, which may inflate while it is read, to its end; ``NotReadable`` beyond ``most`` bytes."""
    made = bytearray()
    while chunk := file.read(min(1 << 20, most + 1 - len(made))):
        made += chunk
        if len(made) > most:
            raise NotReadable(f"it is bigger than {size(most)}, and no configuration is")
    return bytes(made)


def from_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ``NotReadable`` for what is none, and for what nests deeper than Python can follow.

    >>> from_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    headrace.core.files.model_files.NotReadable: it nests too deep
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise NotReadable("it nests too deep") from None
    except ValueError as error:
        raise NotReadable(str(error)) from error


def inside(name: str) -> bool:
    """Say whether a relative name stays in its folder, by its parts alone; links in it are not followed.

    >>> [inside(name) for name in ("a/b", "../b", "/b", "a/../../b", "")]
    [True, False, False, False, False]
    """
    parts = name.replace("\\", "/").split("/")
    return bool(name) and not os.path.isabs(name) and os.pardir not in parts and "\0" not in name


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder with the names of its files: links are followed, entries that begin with a dot left out.

    Raises ``NotReadable`` where there is no end: a link to the whole disk, say.
    """
    been: set[str] = set()
    count = 0
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in been:
            folders[:] = []
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
        been.add(real)
        count += 1 + len(names)
        if count > _MOST_FILES:
            raise NotReadable(
                f"it has more than {_MOST_FILES:,} files, and no model has; is there a link in it?"
            )
        yield root, [name for name in names if not name.startswith(".")]


def names_in_zip(path: str) -> list[str] | None:
    """Return the names of what is in a zip archive; None if it is none, or is damaged."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error):
        return None


def check_inflated(path: str) -> None:
    """Raise ``NotReadable`` if a zip archive inflates to far more than it is: weights hardly shrink."""
    packed = os.path.getsize(path)
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
    if total > max(_INFLATED, 20 * packed):
        raise NotReadable(f"its {packed:,} bytes inflate to {total:,}, and no weights are packed so tightly")
