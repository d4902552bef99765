"""Tables as the runs of one output read them: what was taken in, and what is new since."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Source
from headrace.core.table_changes import HELD, Change, Seen, new_files, not_there, older_version, other_table
from headrace.core.terminal import warn
from headrace.core.work import Split
from headrace.errors import InputChanged, PlanError, SourceError, StoreFailed, UnreadableFile
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


Found = TypeVar("Found")
Inspected = TypeVar("Inspected")


class TableVersion(Source, Generic[Found]):
    """A source of one version of a table, which is settled when it is first looked at; runs may read what it adds.

    ``pins`` are the names of the version in what describes the source, each with the attribute that has it.
    """

    lake: ClassVar[str]
    pins: ClassVar[Mapping[str, str]] = {"version": "_version"}
    _place: str
    _moment: Any = None
    _columns: tuple[str, ...] | None
    _found: Found | None = None  # what the table says of the version
    _runs: Runs | None = None

    @property
    def _name(self) -> str:
        return f"The {self.lake} table {self._place}"

    @property
    def _asked(self) -> bool:
        """Whether a version was asked for."""
        return self._moment is not None or getattr(self, next(iter(self.pins.values()))) is not None

    def _with(self, changed: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    def _look(self) -> Found:
        """Look at the table: the version that was asked for, or the latest."""
        raise NotImplementedError

    def _settled(self) -> Found:
        if self._found is None:
            self._found = self._look()
        return self._found

    def _now(self) -> dict[str, Any]:
        """Return what tells the version, and the table from others in its place."""
        raise NotImplementedError

    def _files_in(self, version: int | None) -> Mapping[str, Any]:
        """Return what a version says of its files; None: the one that is read."""
        raise NotImplementedError

    def _between(self, last: Mapping[str, Any]) -> Iterable[int]:
        """Return the versions after another one and before this one, the latest first."""
        return range(self._now()["version"] - 1, last["version"], -1)

    def _check_later(self, last: Mapping[str, Any]) -> None:
        """Raise ``InputChanged`` if the version that was read last does not come before this one."""
        now = self._now()["version"]
        if now < last["version"]:
            raise older_version(self._name, f"version {now}", f"version {last['version']}")

    def _changes(self, last: Mapping[str, Any]) -> list[Change]:
        """Return what became of the files since another version; raises ``InputChanged`` if nobody knows any more."""
        raise NotImplementedError

    def _gone(self, paths: Sequence[str]) -> list[str]:
        """Return which of some files are not there any more."""
        return []

    def _taken_in(self, runs: Runs, paths: tuple[str, ...], seen: Seen) -> Self:
        return self._with({"_runs": runs, "_pins": paths})

    def position(self) -> dict[str, Any]:
        """Return the version, by what it is recognised, and in which ones files are to be looked up besides."""
        return dict((self._runs and self._runs.position) or self._now())

    def for_further_runs(self, *, keyed: bool) -> Self:
        """Return this source, to be looked at anew, with the files of later versions as further ones."""
        return self._with({"_found": None, "_runs": Runs()})

    def since(self, seen: Seen) -> Self:
        """Return this source with the files that runs have taken in, and those with rows that are new since."""
        now, position = self._now(), seen.positions[-1]
        if position.get("id") != now.get("id"):
            raise other_table(self._name)
        last, new = position, dict[str, int | None]()
        if seen.take_new:
            self._check_later(last)
            new = self._new_files(seen, last)
            position = position_at(now, new)
        between = self._between(last)
        runs, paths = runs_since(self._name, seen, position, new, between, self._files_in, self._gone)
        return self._taken_in(runs, paths, seen)

    def _new_files(self, seen: Seen, last: Mapping[str, Any]) -> dict[str, int | None]:
        live = self._files_in(None)
        try:
            changes = self._changes(last)
        except InputChanged:
            if not seen.keyed:
                raise
            return seen.unseen(live)
        found = new_files(self._name, changes, seen.paths, keyed=seen.keyed)
        return {path: version for path, version in found.items() if version is not None or path in live}

    def as_planned(self, described: Mapping[str, Any]) -> Self:
        """Return this source with the version that a run was planned with, unless another one was asked for."""
        pin = next(iter(self.pins))
        if pin not in described:
            return self.for_further_runs(keyed=False)
        mine, planned = self.describe(), {name: described.get(name) for name in self.pins}
        same = {**mine, **planned} == dict(described)
        if self._asked or not same or mine == dict(described) or not isinstance(planned[pin], int):
            return self
        newer = f"a newer {pin}" if planned[pin] != mine[pin] else f"other columns now, in the same {pin}"
        warn(
            f"{self._name} has {newer}, {mine[pin]}; this run began with {planned[pin]}, and goes on with that one. "
            "A run with another output= reads the newer one."
        )
        return self._pinned(planned)

    def _pinned(self, described: Mapping[str, Any]) -> Self:
        found = {attribute: described.get(name) for name, attribute in self.pins.items()}
        return self._with({"_found": None, **found})

    def by_file(self, begun: Mapping[str, Any]) -> Self:
        """Return this source with a shard for each file, of the version that a run has begun with."""
        begins = not self._asked and begun.get(next(iter(self.pins))) is not None
        return (self._pinned(begun) if begins else self)._with({"_found": None, "files_apart": True})


class TableOfRuns(TableVersion[Found], FileSource[Inspected], Generic[Found, Inspected]):
    """The same of a table that is made of files which we read."""

    choosing: ClassVar[str]
    """What its reader calls the columns and the condition that are asked for."""

    _condition: Any = None

    def for_new_columns(self, where: str | None, begun: Mapping[str, Any]) -> Self:
        """Return this source with a shard for each file, of the version that a run has begun with."""
        if self._columns is not None or self._condition is not None:
            raise PlanError(
                f"mode='add_columns' needs all columns and rows of the table: leave out {self.choosing}. Columns "
                "that no step needs are copied as they are stored."
            )
        return self.by_file(begun)

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
