"""From path arguments to input files: expansion and order.

A path may be a file, a folder (all levels), a glob (``**`` included), or a list of these. Names that begin
with ``_`` or ``.`` are skipped unless they are spelt out. Within one argument files come in the order of
their names, level by level; arguments keep their own order. What is behind addresses lists ``objects``.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

from headrace.core.files.input_files import InputFile
from headrace.core.files.paths import absolute
from headrace.core.stores.addresses import is_address, parse, without_secrets
from headrace.core.stores.options import Options
from headrace.core.terminal import encodable
from headrace.errors import ArgumentError, NothingMatched, UnreadableFile, nearest

PathArgument: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

_LOOKED_AT = 1_000  # files whose names are looked at for a hint
_MAGIC = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class _Entry(NamedTuple):
    path: str
    name: str
    is_folder: bool


# ---------------------------------------------------------------- arguments


def absolute_paths(paths: PathArgument) -> tuple[str, ...]:
    """Return the path arguments as absolute strings, patterns unchanged; addresses as they are meant."""
    given: list[object] = list(paths) if _is_several(paths) else [paths]
    absolute = tuple(_absolute(path) for path in given)
    if not absolute:
        raise ArgumentError("The list of input paths is empty; give at least one file, folder or pattern.")
    return absolute


def _is_several(paths: object) -> TypeGuard[Sequence[object]]:
    return isinstance(paths, Sequence) and not isinstance(paths, (str, bytes))


def _absolute(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"An input path is a string, an os.PathLike, or a list of these, not {path!r}.")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ArgumentError(f"An input path is text, not {text!r}; decode it with os.fsdecode first.")
    if not text:
        raise ArgumentError("An input path is empty; use '.' for the current folder.")
    text = text.removeprefix("local://")  # as in Ray; every path is local here
    scheme = _SCHEME.match(text)
    if scheme is None:
        return absolute(text, "The input path")
    if is_address(text):
        return str(parse(text))
    host, slash, rest = text[scheme.end() :].partition("/")
    if host not in ("", "localhost") or not slash:
        raise ArgumentError(
            f"Cannot read {without_secrets(text)!r}: write a local file as file:///folder/name."
        )
    from urllib.parse import unquote

    return absolute("/" + unquote(rest), "The input path")


# ---------------------------------------------------------------- expansion


def expand(
    arguments: Iterable[str], suffixes: tuple[str, ...] | None, options: Options = ()
) -> list[InputFile]:
    """List the files behind ``absolute_paths``; of a folder, those that end in ``suffixes`` (None: all).

    A folder in which nothing has such a suffix gives its files without any suffix. A file that is named, or
    matched by a pattern whose last part is more than wildcards, is read whatever its suffix.
    """
    files: list[InputFile] = []
    for argument in arguments:
        if is_address(argument):
            from headrace.sources import objects

            files.extend(objects.expand(argument, suffixes, options))
            continue
        found = list(_matches(argument, suffixes))
        if not found:
            raise NothingMatched(_why_nothing(argument, suffixes))
        files.extend(found)
    return files


def _matches(argument: str, suffixes: tuple[str, ...] | None) -> Iterator[InputFile]:
    if os.path.isdir(argument):
        return _of_format(argument, list(_walk(argument)), suffixes)
    if os.path.exists(argument) or not _MAGIC.search(argument):
        return iter([record(argument)] if os.path.exists(argument) else [])
    root, parts = _fixed_part(argument)
    if not os.path.isdir(root):
        return iter(())
    spelt = tuple(mark for mark in "_." if any(part.startswith(mark) for part in parts))
    paths: list[str] = []
    for found in _glob(root, parts, spelt, (os.path.realpath(root),)):
        paths.extend(_walk(found.path) if found.is_folder else [found.path])
    paths = list(dict.fromkeys(paths))
    return _of_format(root, paths, suffixes if not parts[-1].strip("*") else None)


def _of_format(root: str, paths: list[str], suffixes: tuple[str, ...] | None) -> Iterator[InputFile]:
    if suffixes is not None:
        chosen = [path for path in paths if path.lower().endswith(suffixes)]
        paths = chosen or [path for path in paths if "." not in os.path.basename(path)]
    return map(record, paths)


def record(path: str, options: Options = ()) -> InputFile:
    """Return what identifies the present state of a file, or of an object."""
    if is_address(path):
        from headrace.sources import objects

        return objects.record(path, options)
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
    from headrace.sources.signatures import reader_of  # for the message only

    readers = sorted({reader_of(path) for path in itertools.islice(_walk(folder), _LOOKED_AT)})
    if not readers or "" in readers or len(readers) > 3:
        return ""
    return f": {' and '.join(readers)} {'reads' if len(readers) == 1 else 'read'} these"
