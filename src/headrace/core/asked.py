"""What people ask of a run: what each kind of output can do, figures that it must have, and how it is to go on.

Of the one table of outputs refusals and docs are made.

A test tries each cell (``tests/output/test_asked.py``), and ``python tools/asked_table.py`` writes the page from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from headrace.core.human import exact
from headrace.core.terminal import one_line
from headrace.core.work import OnError

Kind = Literal["folder", "store", "delta", "iceberg", "lance", "database"]
KINDS: Mapping[Kind, str] = {
    "folder": "files in a folder",
    "store": "files in a store",
    "delta": "`write_delta`",
    "iceberg": "`write_iceberg`",
    "lance": "`write_lance`",
    "database": "`write_sql`",
}
LAKES: tuple[Kind, ...] = ("delta", "iceberg", "lance")
TABLES: tuple[Kind, ...] = (*LAKES, "database")


class Ask(msgspec.Struct, frozen=True):
    """Something that is asked of an output. ``cannot``: by the kind of the output, why that cannot do it.

    ``but``: what has to be known where it can.
    """

    meaning: str
    cannot: Mapping[Kind, str] = msgspec.field(default_factory=dict)
    but: Mapping[Kind, str] = msgspec.field(default_factory=dict)


_IGNORE = (
    "other programs mean by it that a table which is there is left alone. mode='error' refuses such a table, and a "
    "finished run has nothing to do anyway."
)
_REMOVED = (
    "rows are not removed from a table. mode='overwrite' makes all of them again, in one commit. With "
    "provenance=, "
)
_OLDER_IN_LAKES = f"{_REMOVED}mode='add_columns' gives values to rows of another version."
_OLDER_IN_DATABASES = f"{_REMOVED}a query for rows of another version and mode='update' give them values."
_NO_FILES = "its rows are in no files. with_options(shard_rows=…) says how many are inserted together."

ASKED: Mapping[str, Ask] = {
    "mode='overwrite'": Ask("replaces all rows, once all new ones are there"),
    "mode='error'": Ask("refuses where rows are already"),
    "mode='ignore'": Ask("leaves a finished run as it is, whatever its plan", dict.fromkeys(TABLES, _IGNORE)),
    "incremental": Ask("adds the rows of what is new in the input"),
    "key": Ask(
        "with `incremental`, knows rows by key columns",
        {"store": "keys are kept in files that workers map into memory, so the output has to be a folder."},
        but={
            **dict.fromkeys(LAKES, "not in a store"),
            "database": 'by `with_options`; its own `key=` is for `mode="upsert"`',
        },
    ),
    "refresh='changed'": Ask(
        "makes the rows again that other code made",
        {**dict.fromkeys(LAKES, _OLDER_IN_LAKES), "database": _OLDER_IN_DATABASES},
    ),
    "refresh='rejected'": Ask(
        "tries rejected rows again; what succeeds takes its place",
        but=dict.fromkeys(TABLES, "is added in one commit"),
    ),
    "on_change='continue'": Ask("goes on with a killed run whose code has changed"),
    "on_change='restart'": Ask(
        "begins a killed run again whose code has changed",
        but={"database": 'with `mode="append"`, until rows are in the table'},
    ),
    "require": Ask("shows nothing before all is there and as required"),
    "durability='process'": Ask(
        "does not wait for disks; what is finished outlives a kill",
        but={"store": "what a store has taken outlives more"},
    ),
    "schema": Ask("has the columns in these types"),
    "min_rows_per_file": Ask("makes bigger files", {"database": _NO_FILES}),
    "max_rows_per_file": Ask("makes no bigger files", {"database": _NO_FILES}),
    "partition_by": Ask(
        "divides rows into folders by their values",
        {
            "iceberg": "an Iceberg table has partitions of its own: make it with them, and rows are divided so.",
            "lance": "a Lance table has no partitions.",
            "database": "its rows are in no folders. A database divides its tables itself.",
        },
    ),
    "storage_options": Ask(
        "says what a store has to know",
        {
            "folder": "they are for outputs in object stores, such as s3://bucket/out.",
            "iceberg": "catalog= says what its store has to know.",
            "database": "the address of a database says all.",
        },
    ),
}


def why_not(asked: str, kind: Kind) -> str:
    """Say why a kind of output cannot do what is asked; "" if it can.

    >>> why_not("incremental", "database"), why_not("partition_by", "lance")
    ('', 'a Lance table has no partitions.')
    """
    return ASKED[asked].cannot.get(kind, "")


def refusals(kind: Kind) -> dict[str, str]:
    """Return the arguments that a verb has no use for, with the reasons.

    >>> refusals("lance")
    {'partition_by': 'a Lance table has no partitions.'}
    """
    return {
        name: each.cannot[kind] for name, each in ASKED.items() if kind in each.cannot and "=" not in name
    }


INFINITE = ("infinite", "minus infinite")
"""Notes of figures that JSON has no number for."""


class Figure(msgspec.Struct, frozen=True):
    """A figure of an output beside what was asked for; ``found`` is None if there is no number, and ``note`` why.

    >>> print(Figure("auc", "at least 0.9", 0.83, False))
    auc is 0.83 (asked: at least 0.9)
    """

    name: str
    asked: str
    found: float | None = None
    met: bool = False
    note: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.name} is {self.shown} (asked: {self.asked})")

    @property
    def shown(self) -> str:
        """The figure in words."""
        if self.note in INFINITE:
            return self.note
        found = "unknown" if self.found is None else exact(self.found)
        if self.found is not None and not self.met and found in self.asked.split():
            found = repr(self.found)  # rounded, it would look as if it were met
        return f"{found}, {self.note}" if self.note else found


class RequirementsAsked(msgspec.Struct, frozen=True):
    """Whether the whole output is as it was required; or what somebody decided about one that is not.

    ``verdict`` is ``met``, ``not met``, ``published`` or ``discarded``.
    """

    verdict: str
    figures: tuple[Figure, ...] = ()
    because: str = ""

    @classmethod
    def of(cls, success: Mapping[str, Any]) -> RequirementsAsked | None:
        """Return what was required of a complete output, by its ``_SUCCESS``; None if nothing was."""
        try:
            figures = msgspec.convert(success.get("requirements", ()), tuple[Figure, ...])
            published = msgspec.convert(success.get("published", {}), dict[str, Any])
        except msgspec.ValidationError:
            return None
        met = "met" if all(figure.met for figure in figures) else "not met"
        verdict = "published" if published else met
        return cls(verdict, figures, str(published.get("because", ""))) if figures else None

    def __str__(self) -> str:
        unmet = "; ".join(str(each) for each in self.figures if not each.met)
        if self.verdict == "met":
            return "; ".join(map(str, self.figures))
        if self.verdict == "published":
            return f"published although {unmet}, because: {self.because}"
        return f"discarded, because: {self.because}" if self.verdict == "discarded" else f"not met: {unmet}"


EVERY_ROW = (
    "The run adds columns to a table, which need a value for each row. on_error='null' writes a null for a row that "
    "fails."
)


class RunAsked(msgspec.Struct, frozen=True):
    """How somebody who watches wants the run to go on from now on.

    ``paused``: nothing begins, and what is under way ends as soon as it can. ``ends``: nothing begins, and the run
    stops once what is under way is done. ``workers`` of each stage whose steps do not say how many; ``on_error`` and
    ``max_errors``: instead of the options of that name. None: as before. ``held``, as the driver says: it is paused,
    with nothing under way any more.
    """

    paused: bool = False
    ends: bool = False
    workers: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    on_error: OnError | None = None
    max_errors: Annotated[float, msgspec.Meta(gt=0)] | None = None
    held: bool = False

    def __str__(self) -> str:
        found = (
            ["it ends after what is under way"]
            if self.ends
            else ["it is paused" if self.held else "it pauses"]
            if self.paused
            else []
        )
        options = ("workers", self.workers), ("on_error", self.on_error), ("max_errors", self.max_errors)
        found += [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in options
            if value
        ]
        return ", ".join(found) or "it goes on"
