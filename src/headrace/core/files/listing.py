"""Which files of input a path means, and in which order: on this machine, and by the same rules in a store.

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
from operator import attrgetter
from typing import NamedTuple, Protocol, Self, TypeVar

from headrace.core.files.formats import reader_of
from headrace.core.files.input_files import InputFile
from headrace.core.terminal import encodable
from headrace.errors import NothingMatched, UnreadableFile, nearest

_LOOKED_AT = 1_000  # files whose names are looked at for a hint
MAGIC = re.compile(r"[*?\[]")


class Node(Protocol):
    """A file or a folder by its name, on a disk or in a store. Two of the same place are equal."""

    @property
    def name(self) -> str: ...

    @property
    def is_folder(self) -> bool: ...

    @property
    def real(self) -> object:
        """What a folder has whichever links lead to it."""
        ...

    def inside(self) -> Iterable[Self]:
        """Return what is in a folder, in any order."""
        ...


N = TypeVar("N", bound=Node)


def chosen(root: N, pattern: list[str], suffixes: tuple[str, ...] | None) -> Iterable[N]:
    """Return the files in a folder, or those that match a pattern from there on: those that end in ``suffixes``.

    If none does, those without any suffix. ``suffixes`` None: all; so it is, too, where the last part of the pattern
    is more than wildcards. Without suffixes, files are looked for as they are taken.
    """
    found: Iterable[N] = walk(root)
    if pattern:
        spelt = tuple(mark for mark in "_." if any(part.startswith(mark) for part in pattern))
        matching = _glob(root, pattern, spelt, (root.real,))
        found = (file for node in matching for file in (walk(node) if node.is_folder else (node,)))
        found = dict.fromkeys(found) if "**" in pattern else found  # which may lead to a file twice
        suffixes = None if pattern[-1].strip("*") else suffixes
    if suffixes is None:
        return found
    every = list(found)
    fitting = [file for file in every if file.name.lower().endswith(suffixes)]
    return fitting or [file for file in every if "." not in file.name]


def walk(folder: N, above: tuple[object, ...] = ()) -> Iterator[N]:
    """Yield the files on all levels of a folder."""
    real = folder.real
    if real in above:  # a link that leads back to where we are
        return
    for node in _shown(folder, ()):
        if node.is_folder:
            yield from walk(node, (*above, real))
        else:
            yield node


def _glob(folder: N, parts: list[str], spelt: tuple[str, ...], above: tuple[object, ...]) -> Iterator[N]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        if rest:
            yield from _glob(folder, rest, spelt, above)
        for node in _shown(folder, spelt):
            if node.is_folder:
                if node.real not in above:
                    yield from _glob(node, parts, spelt, (*above, node.real))
            elif not rest:
                yield node
        return
    fits = re.compile(fnmatch.translate(part)).match
    for node in _shown(folder, spelt):
        if fits(node.name):
            if not rest:
                yield node
            elif node.is_folder:
                yield from _glob(node, rest, spelt, above)


def _shown(folder: N, spelt: tuple[str, ...]) -> list[N]:
    found = [node for node in folder.inside() if not _hidden(node, spelt)]
    return sorted(found, key=attrgetter("name"))


def _hidden(node: Node, spelt: tuple[str, ...]) -> bool:
    mark = node.name[:1]
    if mark not in ("_", ".") or mark in spelt:
        return False
    return not (mark == "_" and node.is_folder and "=" in node.name)  # a partition key may begin with "_"


# ---------------------------------------------------------------- on this machine


class _File(NamedTuple):
    path: str
    name: str
    is_folder: bool = True

    @property
    def real(self) -> str:
        return os.path.realpath(self.path)

    def inside(self) -> list[_File]:
        try:
            with os.scandir(self.path) as entries:
                return [_File(entry.path, entry.name, entry.is_dir()) for entry in entries]
        except OSError as error:
            raise UnreadableFile(f"Cannot list input folder {self.path!r}: {error.strerror}.") from error


def expand(argument: str, suffixes: tuple[str, ...] | None) -> list[InputFile]:
    """List the files behind a full path: a file, a folder or a pattern, see ``chosen``."""
    found = [*map(record, matches(argument, suffixes))]
    if not found:
        raise NothingMatched(_why_nothing(argument, suffixes))
    return found


def matches(argument: str, suffixes: tuple[str, ...] | None = None) -> Iterable[str]:
    """Return the files behind a full path, which are looked for as they are taken."""
    folder, pattern = argument, list[str]()
    if not os.path.isdir(argument):
        if os.path.exists(argument) or not MAGIC.search(argument):
            return [argument] if os.path.exists(argument) else []
        folder, pattern = _fixed_part(argument)
        if not os.path.isdir(folder):
            return []
    return (file.path for file in chosen(_File(folder, ""), pattern, suffixes))


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
        if MAGIC.search(part) and not os.path.isdir(os.sep.join(parts[: i + 1]))  # "[x]" may be a real name
    )
    return os.sep.join(parts[:first]) or os.sep, parts[first:]


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
    if os.path.isdir(parent) and MAGIC.search(missing):
        return f"{start}nothing in {parent!r} matches {missing!r}{_such_as(parent)}."
    names = os.listdir(parent) if os.path.isdir(parent) else []
    return f"{start}there is no {missing!r} in {parent!r}.{nearest(missing, names)}"


def _such_as(folder: str) -> str:
    names = sorted(os.listdir(folder))
    if not names:
        return " (it is empty)"
    shown = ", ".join(repr(name) for name in names[:3])
    return (
        f" (it holds {shown})" if len(names) <= 3 else f" (it holds {len(names):,} entries, such as {shown})"
    )


def _other_readers(folder: str) -> str:
    """Return which readers are for the files of a folder, if all their names tell."""
    readers = sorted({reader_of(file.path) for file in itertools.islice(walk(_File(folder, "")), _LOOKED_AT)})
    if not readers or "" in readers or len(readers) > 3:
        return ""
    return f": {' and '.join(readers)} {'reads' if len(readers) == 1 else 'read'} these"
