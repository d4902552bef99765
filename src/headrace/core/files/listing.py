"""Input files on this machine: expansion and order.

A path may be a file, a folder (all levels), or a glob (``**`` included). Names that begin with ``_`` or ``.`` are
skipped unless they are spelt out. Files come in the order of their names, level by level.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.core.files.formats import reader_of
from headrace.core.files.input_files import InputFile
from headrace.core.terminal import encodable
from headrace.errors import NothingMatched, UnreadableFile, nearest

_LOOKED_AT = 1_000  # files whose names are looked at for a hint
_MAGIC = re.compile(r"[*?\[]")


class _Entry(NamedTuple):
    path: str
    name: str
    is_folder: bool


def expand(argument: str, suffixes: tuple[str, ...] | None) -> list[InputFile]:
    """List the files behind a full path; of a folder, those that end in ``suffixes`` (None: all).

    A folder in which nothing has such a suffix gives its files without any suffix. A file that is named, or
    matched by a pattern whose last part is more than wildcards, is read whatever its suffix.
    """
    found = [*map(record, matches(argument, suffixes))]
    if not found:
        raise NothingMatched(_why_nothing(argument, suffixes))
    return found


def matches(argument: str, suffixes: tuple[str, ...] | None = None) -> Iterable[str]:
    """Return the files behind a full path, which are looked for as they are taken."""
    if os.path.isdir(argument):
        return _of_format(_walk(argument), suffixes)
    if os.path.exists(argument) or not _MAGIC.search(argument):
        return [argument] if os.path.exists(argument) else []
    root, parts = _fixed_part(argument)
    if not os.path.isdir(root):
        return []
    spelt = tuple(mark for mark in "_." if any(part.startswith(mark) for part in parts))
    paths: list[str] = []
    for found in _glob(root, parts, spelt, (os.path.realpath(root),)):
        paths.extend(_walk(found.path) if found.is_folder else [found.path])
    return _of_format(dict.fromkeys(paths), suffixes if not parts[-1].strip("*") else None)


def _of_format(paths: Iterable[str], suffixes: tuple[str, ...] | None) -> Iterable[str]:
    if suffixes is None:
        return paths
    paths = list(paths)
    chosen = [path for path in paths if path.lower().endswith(suffixes)]
    return chosen or [path for path in paths if "." not in os.path.basename(path)]


def record(path: str) -> InputFile:
    """Return what identifies the present state of a file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise UnreadableFile(f"Cannot look at input file {path!r}: {error.strerror}.") from error
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile(
            f"Input {path!r} is not a regular file (a pipe, socket or device cannot be read twice); "
            "save its contents to a file first."
        )
    if encodable(path) != path:
        raise UnreadableFile(
            f"Cannot read {path!r}: its name is not UTF-8, and neither Arrow nor an output can hold it. "
            "Rename the file or folder, for instance with convmv, or leave it out."
        )
    return InputFile(path, status.st_size, status.st_mtime_ns)


def _fixed_part(pattern: str) -> tuple[str, list[str]]:
    """Cut a pattern into the folder before the first wildcard and the parts from there on."""
    parts = pattern.split(os.sep)
    first = next(
        i
        for i, part in enumerate(parts)
        if _MAGIC.search(part) and not os.path.isdir(os.sep.join(parts[: i + 1]))  # "[x]" may be a real name
    )
    return os.sep.join(parts[:first]) or os.sep, parts[first:]


def _glob(folder: str, parts: list[str], spelt: tuple[str, ...], above: tuple[str, ...]) -> Iterator[_Entry]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        if rest:
            yield from _glob(folder, rest, spelt, above)
        for entry in _entries(folder, spelt):
            if entry.is_folder:
                real = os.path.realpath(entry.path)
                if real not in above:
                    yield from _glob(entry.path, parts, spelt, (*above, real))
            elif not rest:
                yield entry
        return
    fits = re.compile(fnmatch.translate(part)).match
    for entry in _entries(folder, spelt):
        if fits(entry.name):
            if not rest:
                yield entry
            elif entry.is_folder:
                yield from _glob(entry.path, rest, spelt, above)


def _walk(folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    real = os.path.realpath(folder)
    if real in above:  # a link that leads back to where we are
        return
    for entry in _entries(folder, ()):
        if entry.is_folder:
            yield from _walk(entry.path, (*above, real))
        else:
            yield entry.path


def _entries(folder: str, spelt: tuple[str, ...]) -> list[_Entry]:
    try:
        with os.scandir(folder) as entries:
            found = [_Entry(entry.path, entry.name, entry.is_dir()) for entry in entries]
    except OSError as error:
        raise UnreadableFile(f"Cannot list input folder {folder!r}: {error.strerror}.") from error
    return sorted((entry for entry in found if not _hidden(entry, spelt)), key=lambda entry: entry.name)


def _hidden(entry: _Entry, spelt: tuple[str, ...]) -> bool:
    mark = entry.name[0]
    if mark not in "_." or mark in spelt:
        return False
    return not (mark == "_" and entry.is_folder and "=" in entry.name)  # a partition key may begin with "_"


def _why_nothing(argument: str, suffixes: tuple[str, ...] | None) -> str:
    parent, missing = os.path.split(argument)
    while not os.path.exists(parent) and parent != os.path.dirname(parent) and not os.path.isdir(parent):
        parent, missing = os.path.split(parent)
    start = f"No input file at {argument!r}: "
    if os.path.isdir(argument):
        wanted = f"ends in {', '.join(suffixes)}" if suffixes else "is not hidden"
        return (
            f"{start}the folder holds no file that {wanted}{_such_as(argument)}{_other_readers(argument)}. "
            "Name the files, or give a pattern such as '*.xyz'; names that begin with '_' or '.' are skipped."
        )
    if os.path.isdir(parent) and _MAGIC.search(missing):
        return f"{start}nothing in {parent!r} matches {missing!r}{_such_as(parent)}."
    names = os.listdir(parent) if os.path.isdir(parent) else []
    return f"{start}there is no {missing!r} in {parent!r}.{nearest(missing, names)}"


def _such_as(folder: str) -> str:
    names = sorted(os.listdir(folder))
    if not names:
        return " (it is empty)"
    shown = ", ".join(repr(name) for name in names[:3])
    return f" (it holds {len(names)} entries, such as {shown})"


def _other_readers(folder: str) -> str:
    """Return which readers are for the files of a folder, if all their names tell."""
    readers = sorted({reader_of(path) for path in itertools.islice(_walk(folder), _LOOKED_AT)})
    if not readers or "" in readers or len(readers) > 3:
        return ""
    return f": {' and '.join(readers)} {'reads' if len(readers) == 1 else 'read'} these"
