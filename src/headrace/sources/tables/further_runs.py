"""Tables as the runs of one output read them: what was taken in, and what is new since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.files.input_files import InputFile
from headrace.core.tables.changes import HELD, Seen, not_there


@dataclass(frozen=True)
class Runs:
    """What runs of one output have read of a table: files ``unread`` now, and what the table says of others.

    ``position`` is up to where; empty before that is known. ``forms`` are those of columns of earlier files.
    """

    position: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, InputFile] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)


def runs_since(
    table: str,
    seen: Seen,
    position: Mapping[str, Any],
    new: Mapping[str, int | None],
    look_up: Callable[[Collection[str], Sequence[int]], Mapping[str, Any]],
    gone_of: Callable[[Sequence[str]], Collection[str]],
) -> tuple[Runs, tuple[str, ...]]:
    """Return what runs have read up to ``position``, and the files to list: those that were taken in, and new ones.

    ``look_up`` says what the table tells of some files, by the latest version or others that have them; new ones of
    which it says nothing hold no row that is asked for. ``gone_of`` says which files are not there any more.
    """
    needed = list(dict.fromkeys(seen.files[number][0] for number in sorted(seen.to_read)))
    told = look_up([*needed, *new], versions_of(seen.positions, new))
    paths = [path for path in seen.paths if path not in {*needed} or path in told]
    paths += [path for path in new if path in told]
    lost = {path: "no version that can still be read names it" for path in needed if path not in told}
    lost |= dict.fromkeys(gone_of([path for path in paths if path in told]), "a clean-up has removed it")
    if lost and not seen.may_miss:
        raise not_there(table, *next(iter(lost.items())))
    unread = {path: InputFile(path, *about) for path, *about in seen.files if path not in {*needed}}
    return Runs(position, unread, told, seen.forms), tuple(path for path in paths if path not in lost)


def position_at(about: Mapping[str, Any], new: Mapping[str, int | None]) -> dict[str, Any]:
    """Return a position with the versions in which some of the new files are to be looked up.

    >>> position_at({"version": 7}, {"a": None, "b": 5})
    {'version': 7, 'held': {'b': 5}}
    """
    held = {path: version for path, version in new.items() if version is not None}
    return {**about, **({HELD: held} if held else {})}


def versions_of(positions: Sequence[Mapping[str, Any]], new: Mapping[str, int | None]) -> list[int]:
    """Return the versions in which files may be looked up that the latest has not: the latest of them first.

    >>> versions_of([{"version": 1}, {"version": 4, "held": {"b": 2}}], {"c": 5, "d": None})
    [5, 4, 2, 1]
    """
    found = [version for version in new.values() if version is not None]
    for position in reversed(positions):
        number = position.get("version", position.get("snapshot"))
        found += [each for each in (number, *position.get(HELD, {}).values()) if each is not None]
    return list(dict.fromkeys(found))
