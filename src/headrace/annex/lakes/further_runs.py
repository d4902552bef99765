"""Tables as the runs of one output read them: what was taken in, and what is new since."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from headrace.core.files.input_files import InputFile
from headrace.core.table_changes import HELD, Seen, not_there
from headrace.core.work import Split
from headrace.errors import SourceError, StoreFailed, UnreadableFile
from headrace.sources.file_source import FileSource


@dataclass(frozen=True)
class Runs:
    """What runs of one output have read of a table: files ``unread`` now, and what the table says of others.

    ``position`` is up to where; empty before that is known. ``forms`` are those of columns of earlier files.
    """

    position: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, InputFile] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)


Inspected = TypeVar("Inspected")


class TableOfRuns(FileSource[Inspected], Generic[Inspected]):
    """A source of one version of a table that is made of files; runs of one output may read what it adds."""

    _runs: Runs | None = None

    def splits_from(self, file: int) -> list[Split] | None:
        """List the splits of further files, where runs add to one output.

        Otherwise None: files that are new in a table may hold rows that others held before, put together anew.
        """
        return super().splits_from(file) if self._runs else None

    def _with(self, changed: Mapping[str, Any]) -> Self:
        copy: Self = object.__new__(type(self))
        copy.__dict__ = {**self._without_handles(), "_files": [], "_inspected": None, **changed}
        return copy

    def _gone(self, paths: Sequence[str]) -> list[str]:
        """Return which of some files are not there any more."""
        with contextlib.suppress(UnreadableFile):
            self._recorded(paths)
            return []
        return [path for path in paths if not self._is_there(path)]

    def _is_there(self, path: str) -> bool:
        try:
            return bool(self._recorded([path]))
        except UnreadableFile:
            return False

    def _recorded(self, paths: Sequence[str]) -> list[InputFile]:
        """Look at the files that are read; of others, what was known of them is taken."""
        unread = self._runs.unread if self._runs else {}
        try:
            found = iter(super()._recorded([path for path in paths if path not in unread]))
            return [unread[path] if path in unread else next(found) for path in paths]
        except SourceError as error:
            raise type(error)(f"{error} {self._named_by()}") from error

    def _named_by(self) -> str:
        """Say what names files that are not there, and what removes them."""
        raise NotImplementedError


def runs_since(
    table: str,
    seen: Seen,
    position: Mapping[str, Any],
    new: Mapping[str, int | None],
    between: Iterable[int],
    files_in: Callable[[int | None], Mapping[str, Any]],
    gone_of: Callable[[Sequence[str]], Collection[str]],
) -> tuple[Runs, tuple[str, ...]]:
    """Return what runs have read up to ``position``, and the files to list: those that were taken in, and new ones.

    ``files_in`` says what the table tells of the files of a version (None: the latest), and raises ``SourceError`` if
    that cannot be read any more; ``gone_of`` which files are not there any more. What was taken in is read as it was
    then, what is new as in the last version that has it; new files of which that tells nothing hold no row that is
    asked for. ``between``: the versions since the last one that was read, the latest first: a driver that was killed
    may have taken in files of one of them, and not said of which.
    """
    needed = list(dict.fromkeys(seen.files[number][0] for number in sorted(seen.to_read)))
    read = frozenset(needed)
    held = {
        path: last for each in seen.positions for path, last in each.get(HELD, {}).items() if path in read
    }
    told = _each_by_its_own(held, files_in)
    told |= _looked_up(
        [path for path in needed if path not in held],
        [*versions_of(seen.positions), *between, None],
        files_in,
    )
    told |= _each_by_its_own(new, files_in, table)
    paths = [path for path in seen.paths if path not in read or path in told]
    paths += [path for path in new if path in told]
    lost = {path: "no version that can still be read names it" for path in needed if path not in told}
    lost |= dict.fromkeys(gone_of([path for path in paths if path in told]), "a clean-up has removed it")
    for path, why in lost.items():
        if path in new or not seen.may_miss:
            raise not_there(table, path, why)
    unread = {file[0]: InputFile(*file) for file in seen.files if file[0] not in read}
    return Runs(position, unread, told, seen.forms), tuple(path for path in paths if path not in lost)


def _looked_up(
    paths: Sequence[str], versions: Iterable[int | None], files_in: Callable[[int | None], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what is told of some files, by the first of some versions that has each and can be read."""
    found: dict[str, Any] = {}
    for version in dict.fromkeys(versions):
        missing = [path for path in paths if path not in found]
        if not missing:
            break
        found |= _each_by_its_own(dict.fromkeys(missing, version), files_in)
    return found


def _each_by_its_own(
    versions: Mapping[str, int | None],
    files_in: Callable[[int | None], Mapping[str, Any]],
    table: str = "",
) -> dict[str, Any]:
    """Return what is told of files by the version of each. One that cannot be read is passed over, or refused.

    It is refused if ``table`` is given: nobody has read the rows of the files that it has last.
    """
    found: dict[str, Any] = {}
    for version in dict.fromkeys(versions.values()):
        asked = [path for path, own in versions.items() if own == version]
        try:
            there = files_in(version)
        except StoreFailed:
            raise
        except SourceError as error:
            if not table:
                continue
            why = f"version {version}, the last that has it, cannot be read. {error}".rstrip(".")
            raise not_there(table, asked[0], why) from error
        found |= {path: there[path] for path in asked if path in there}
    return found


def position_at(about: Mapping[str, Any], new: Mapping[str, int | None]) -> dict[str, Any]:
    """Return a position with the versions in which some of the new files are to be looked up.

    >>> position_at({"version": 7}, {"a": None, "b": 5})
    {'version': 7, 'held': {'b': 5}}
    """
    held = {path: version for path, version in new.items() if version is not None}
    return {**about, **({HELD: held} if held else {})}


def versions_of(positions: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the versions that were read, the latest first, each with those in which files were looked up.

    >>> versions_of([{"version": 1}, {"version": 4, "held": {"b": 2}}])
    [4, 2, 1]
    """
    found: list[int] = []
    for position in reversed(positions):
        number = position.get("version", position.get("snapshot"))
        found += [each for each in (number, *position.get(HELD, {}).values()) if each is not None]
    return list(dict.fromkeys(found))
