"""The versions of a Lance table, one after the other: which fragments each added, and which it changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.core.tables.changes import Change, Kind
from headrace.core.tables.places import within

_COLUMNS_ONLY = ("Merge", "Project")  # rows keep their values, and columns come or go


class _Fragment(NamedTuple):
    path: str
    deleted: Any  # by what its deletions are recognised
    files: tuple[str, ...]


class State(NamedTuple):
    """The fragments of one version, by their numbers."""

    version: int
    fragments: Mapping[int, _Fragment]

    @classmethod
    def of(cls, place: str, table: Any) -> State:
        """Look at an opened version."""
        found = {}
        for each in table.get_fragments():
            about = each.metadata
            files = tuple(file.path for file in about.files)
            deleted = None if about.deletion_file is None else str(about.deletion_file.asdict())
            found[each.fragment_id] = _Fragment(within(place, f"data/{files[0]}"), deleted, files)
        return cls(int(table.version), found)

    def digest(self) -> str:
        """Return what no other table has in the same version: names of files are made up at random."""
        names = "\n".join(each.files[0] for _, each in sorted(self.fragments.items()))
        return hashlib.sha256(names.encode()).hexdigest()[:32]


def changes_of(table: Any, before: State, after: State) -> list[Change]:
    """Return what a version did to the fragments of the one before."""
    was, now = before.fragments, after.fragments
    operation = _operation(table, after.version)
    name = f"version {after.version}" + (f" ({operation})" if operation else "")
    touched = [number for number in was.keys() & now.keys() if was[number] != now[number]]
    if operation in _COLUMNS_ONLY and all(was[each].deleted == now[each].deleted for each in touched):
        moved = [(was[each].path, now[each].path) for each in touched if was[each].path != now[each].path]
        return [Change(name, before.version, "rewrite", [new], {old}) for old, new in moved]
    added = [each.path for number, each in now.items() if number not in was]
    removed = {each.path for number, each in was.items() if number not in now}
    kind: Kind = "change" if removed or touched else "append"
    if operation == "Rewrite" and not touched:
        kind = "rewrite"
    added += [now[number].path for number in touched]
    removed |= {was[number].path for number in touched}
    return [Change(name, before.version, kind, added, removed)]


def _operation(table: Any, version: int) -> str:
    try:
        found = table.read_transaction(version)
    except (
        TypeError
    ) as error:  # the library cannot say what it did to indices, which only this operation does
        if "RewrittenIndex" in str(error):
            return "Rewrite"
        raise
    return "" if found is None else type(found.operation).__name__
