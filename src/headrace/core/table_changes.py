"""What became of a table since a version that was read, or since rows were added to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.errors import InputChanged

Kind = Literal["append", "rewrite", "change", "overwrite"]

UNNAMED = "rows of other files"
"""Stands among removed files for those of which a version took rows without naming them."""


class Lost(NamedTuple):
    """Why a table has not all rows that a run added.

    ``left``: ``"some"`` of them may be there, ``"none"`` is, or there is ``"no table"`` that has ever had them.
    ``"unknown"``: all of them may be there. ``by_run``: another run of ours, which overwrites, has replaced them.
    """

    left: Literal["some", "none", "no table", "unknown"]
    why: str
    by_run: bool = False


HELD = "held"
"""In a position: files that are to be looked up in other versions than its own."""


def position_text(position: Any) -> str:
    """Say which version of its input a run has read, as it stands in ``_SUCCESS``; "" if that has none.

    >>> position_text({"id": "5f", "version": 6}), position_text({"rows": 61}), position_text(None)
    ('version 6', '61 rows', '')
    """
    found = position if isinstance(position, dict) else {}
    for name in ("version", "snapshot"):
        if isinstance(found.get(name), int):
            return f"{name} {found[name]}"
    return f"{found['rows']:,} rows" if isinstance(found.get("rows"), int) else ""


def taken_in(new: str, version: str) -> str:
    """Say what a run has taken in: ``new`` files, up to which ``position_text``; or the answer of a query.

    >>> taken_in("2 new input files", "version 6"), taken_in("1 new input file", "61 rows")
    ('2 new input files, up to version 6', 'an answer of 61 rows')
    """
    if version.endswith(" rows"):
        return f"an answer of {version}"
    return f"{new}, up to {version}" if version else new


class Seen(msgspec.Struct, frozen=True):
    """What the runs of an output have taken in of a source that has versions.

    ``files`` as the source listed them, ``positions`` what it said of the versions that were read, the oldest first,
    ``forms`` those of its columns. ``to_read``: numbers of the files that shards still read, now or again; of these
    some may be gone if ``may_miss``. ``keyed``: rows whose keys were seen are left out. Without ``take_new`` nothing
    is taken in that is new since.
    """

    files: Sequence[tuple[str, int, int]]
    positions: Sequence[dict[str, Any]]
    to_read: Collection[int] = ()
    forms: dict[str, str] = {}
    keyed: bool = False
    may_miss: bool = False
    take_new: bool = True

    @property
    def paths(self) -> list[str]:
        """The paths of the files."""
        return [path for path, _, _ in self.files]

    def unseen(self, live: Iterable[str]) -> dict[str, int | None]:
        """Return which files of the latest version were not taken in, as ``new_files`` does."""
        known = frozenset(self.paths)
        return dict.fromkeys(path for path in live if path not in known)


class Change(NamedTuple):
    """What a version did to the files of a table.

    ``append``: files with new rows. ``rewrite``: the rows of ``removed`` are those of ``added``. ``change``: rows may
    be others, or gone. ``overwrite``: no row from before is left. ``name`` is that of the version, ``before`` the
    version that it was made from, ``run`` the run of ours that made it.
    """

    name: str
    before: int | None
    kind: Kind
    added: Collection[str]
    removed: Collection[str]
    run: str = ""


def new_files(
    table: str, changes: Iterable[Change], known: Collection[str], *, keyed: bool = False
) -> dict[str, int | None]:
    """Return the files whose rows nobody has read, each with the last version that has it; None: the latest has.

    Raises ``InputChanged`` where rows that were read are others since. ``keyed``: it is known by keys which rows were
    read, so such files are read again.

    >>> grown = Change("version 2 (WRITE)", 1, "append", ["b"], [])
    >>> new_files("t", [grown, Change("version 3 (OPTIMIZE)", 2, "rewrite", ["c"], ["b"])], ["a"])
    {'c': None}
    >>> compacted = Change("version 3 (OPTIMIZE)", 2, "rewrite", ["c"], ["a", "b"])
    >>> new_files("t", [grown, compacted], ["a"]), new_files("t", [grown, compacted], ["a"], keyed=True)
    ({'b': 2}, {'c': None})
    """
    found: dict[str, int | None] = {}
    seen = set(known)
    for change in changes:
        new = {path for path in change.removed if path in found and found[path] is None}
        old = len(new) < len({*change.removed})
        added = [path for path in change.added if path not in seen]
        if old and change.kind != "rewrite" and not keyed:
            raise _replaced(table, change.name)
        for path in new:
            if old and not keyed:
                found[path] = change.before  # its rows lie beside others that were read
            elif path not in change.added:
                del found[path]
        if change.kind == "rewrite" and not (new and (keyed or not old)):
            seen.update(path for path in added if path not in found)
        else:
            found |= dict.fromkeys(added)
    return found


def _replaced(table: str, version: str) -> InputChanged:
    return InputChanged(
        f"{table} has other rows than those that runs of this output have read: its {version} replaced or "
        "removed some of them. incremental=True adds rows that were appended, and takes none back. Nothing was "
        f"touched: make the output again with mode='overwrite' and without incremental, or {KEYED}."
    )


KEYED = (
    "write to another output; one that is begun with key=, the columns by which rows are told apart, reads files "
    "with changed rows again, and processes the rows with new keys"
)


def other_table(table: str) -> InputChanged:
    """Return the error for a table that is not the one which runs have read."""
    return InputChanged(
        f"{table} is another table than the one that runs of this output have read: a new table was made in the same "
        "place. Nothing was touched: make the output again with mode='overwrite' and without incremental, or write "
        "to another output."
    )


def older_version(table: str, now: str, was: str) -> InputChanged:
    """Return the error for a version that is older than what was read."""
    return InputChanged(
        f"{table} is read at {now} here, which is older than {was}, up to which runs of this output have read it. "
        "Rows that were added stay. Nothing was touched: read a later version, or write to another output."
    )


def no_history(table: str, what: str) -> InputChanged:
    """Return the error for a table that does not tell any more what happened to it."""
    return InputChanged(
        f"{table} does not say any more what has changed since it was last read: {what}. So it is not known which of "
        "its rows are new. Nothing was touched: make the output again with mode='overwrite' and without incremental, "
        f"or {KEYED}. To avoid this, run more often: within the time for which the table keeps its history."
    )


def not_there(table: str, path: str, why: str) -> InputChanged:
    """Return the error for a file of an older version that is to be read and gone."""
    return InputChanged(
        f"{table} does not have the file {path} any more, whose rows are to be added: {why}. Nothing was touched: "
        "make the output again with mode='overwrite' and without incremental, or write to another output. Files "
        "should be kept until the next run has read them."
    )
