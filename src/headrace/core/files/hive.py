"""Folders that are named for a column's value, as Hive, Spark and pyarrow name them: ``key=value``."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator

from headrace.core.files import safe_files

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value that stands for null."""

_HIVE = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_OURS = re.compile(r"(?![_.])[^=/%\0]+=(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})*")


def hive_values(path: str) -> dict[str, str | None]:
    """Return the ``key=value`` folders directly above a file, outermost first; None is Hive's null.

    >>> hive_values("/data/year=2024/city=S%C3%A3o/part-0.parquet")
    {'year': '2024', 'city': 'São'}
    """
    return dict(_values_of(path.rpartition(os.sep)[0]))


@functools.lru_cache(maxsize=256)  # many files lie in one folder
def _values_of(folder: str) -> tuple[tuple[str, str | None], ...]:
    found: list[tuple[str, str | None]] = []
    for part in reversed(folder.split(os.sep)):
        match = _HIVE.fullmatch(part)
        if match is None:
            break
        from urllib.parse import unquote  # most paths have no such folders

        found.append((unquote(match[1]), None if match[2] == HIVE_NULL else unquote(match[2])))
    return tuple(reversed(found))


def folder_name(column: str, value: str | None, *, caseless: bool = False) -> str:
    """Return the name of the folder for a column's value: nothing in it leads anywhere else.

    ``caseless``: the file system takes ``a`` and ``A`` for one name, so capitals are written as their codes.

    >>> folder_name("city", "São/../x"), folder_name("city", None), folder_name("city", "Rio", caseless=True)
    ('city=S%C3%A3o%2F..%2Fx', 'city=__HIVE_DEFAULT_PARTITION__', 'city=%52io')
    """
    if value is None:
        return f"{column}={HIVE_NULL}"
    from urllib.parse import quote

    text = quote(value, safe="")
    if caseless:
        text = re.sub(r"(%..)|([A-Z])", lambda found: found[1] or f"%{ord(found[2]):02X}", text)
    return f"{column}={text}"


def file_name(path: str) -> str:
    """Return the part of a path behind the folders that ``folder_name`` makes; all of it if there are others.

    >>> file_name("day=1/city=S%C3%A3o/a.csv"), file_name("a.csv"), file_name("day=1/../a.csv")
    ('a.csv', 'a.csv', 'day=1/../a.csv')
    """
    if "/" not in path:  # as most
        return path
    *folders, name = path.split("/")
    return name if all(map(_OURS.fullmatch, folders)) else path


def folders(root: str | os.PathLike[str], within: str = "") -> Iterator[str]:
    """Yield the folders below ``root`` that are named for values, inner ones first, from ``root`` on."""
    for name in _names(os.path.join(root, within)):
        if _OURS.fullmatch(name) and safe_files.is_folder(os.path.join(root, within, name)):
            yield from folders(root, f"{within}{name}/")
            yield within + name


def entries(root: str | os.PathLike[str], within: str = "") -> Iterator[str]:
    """Yield what a reader finds below ``root``, from there on: names that are not hidden, also in such folders."""
    for name in _names(os.path.join(root, within)):
        if name.startswith(("_", ".")):
            continue
        if _OURS.fullmatch(name) and safe_files.is_folder(os.path.join(root, within, name)):
            yield from entries(root, f"{within}{name}/")
        else:
            yield within + name


def _names(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


def make_folders(root: str | os.PathLike[str], name: str) -> None:
    """Make the folders that a file of this name lies in; raises ``NotOurs`` where a link or a file stands."""
    for folder in reversed(_above(name)):
        safe_files.make_folder(os.path.join(root, folder))


def has_folders(root: str | os.PathLike[str], name: str) -> bool:
    """Say whether the folders that a file of this name lies in are there, and no links."""
    return all(safe_files.is_folder(os.path.join(root, folder)) for folder in _above(name))


def remove_empty(root: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Remove the folders for values in which files of these names lay, if nothing else is in them."""
    above = {folder for name in names if file_name(name) != name for folder in _above(name)}
    for folder in sorted(above, key=len, reverse=True):
        if has_folders(root, folder):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(root, folder))


def _above(name: str) -> list[str]:
    """Return the folders of a name, the innermost first.

    >>> _above("a=1/b=2/part")
    ['a=1/b=2', 'a=1']
    """
    if "/" not in name:  # as most
        return []
    from pathlib import Path

    return [str(folder) for folder in Path(name).parents][:-1]
