"""``hr.compare``: two outputs, tables, files or datasets, row by row."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.annex.compare.comparison import Comparison
from headrace.annex.compare.measure import Measure
from headrace.annex.compare.pairs import by_key, by_position, why_divided, why_not_by_position
from headrace.annex.compare.rows import Rows, kind_read, of_run, opened
from headrace.core.arguments import known_arguments
from headrace.core.install import library
from headrace.errors import ArgumentError, UnknownColumn, nearest

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset
    from headrace.output.places.place import Place
    from headrace.output.runs import SavedRun
    from headrace.plan.requirements import Against

_MOST = 1_000  # rows of a sample


@known_arguments
def compare(
    old: str | os.PathLike[str] | Dataset,
    new: str | os.PathLike[str] | Dataset,
    *,
    on: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    sample: int = 20,
    label: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare two sets of rows: which are the same, which changed, and how each column differs.

    Rows are paired by their position, if both sides are outputs of Headrace over the same input in which every row
    that was read was written. Otherwise say what tells a row, with ``on``.

    Parameters
    ----------
    old, new
        The folder or address of an output, the folder of a Delta or Lance table, files in any format that is read, or
        a dataset, such as ``hr.read_sql(…)`` or ``hr.read_iceberg(…)``. Of a new output that waits to be published,
        the rows that wait are compared; so the two may be the same.
    on
        The column or columns that tell a row. Both sides are joined by DuckDB, which uses 600 MB of memory and a
        temporary folder for what does not fit.
    columns
        The columns to compare. Default: all that both sides have.
    sample
        How many rows to keep of each column, those that changed most, and of those that one side alone has; from 0
        to 1,000.
    label
        A column with the truth, of either side. Old and new results are judged by it: fractions by AUROC, if the
        labels are 0 and 1, other results by accuracy. Each has an interval of 95 %, and the difference a p-value:
        DeLong (1988) for AUROC, McNemar (1947) for accuracy.
    storage_options
        For addresses, as in ``read_parquet``.

    Raises
    ------
    ArgumentError
        What is given cannot be compared: rows are not paired by position, a key occurs twice in a side, or a key is
        of two kinds. ``UnknownColumn``: a side has no such column. ``PlanError``: an output is not complete.
        ``NothingMatched``: there is nothing. ``MissingLibrary``: DuckDB is not installed, and ``on`` is given.

    Examples
    --------
    >>> import pytest, headrace as hr
    >>> _ = pytest.importorskip("duckdb")
    >>> old = hr.from_items([{"id": 1, "fare": 8.0}, {"id": 2, "fare": 9.5}])
    >>> new = hr.from_items([{"id": 2, "fare": 9.0}, {"id": 3, "fare": 7.0}])
    >>> found = hr.compare(old, new, on="id")
    >>> found.changed, found.only_old, found.only_new, found.columns["fare"]["difference"]["most"]
    (1.0, 1, 1, -0.5)
    """
    if isinstance(sample, bool) or not isinstance(sample, int) or not 0 <= sample <= _MOST:
        raise ArgumentError(f"compare: sample={sample!r} is not a whole number from 0 to {_MOST:,}.")
    keys = _names("on", on)
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(opened(each, side, storage_options))
            for each, side in ((old, "old"), (new, "new"))
        ]
        return compared(sides[0], sides[1], keys, _names("columns", columns), sample, label)


def compared(
    old: Rows, new: Rows, keys: list[str], columns: list[str], sample: int, label: str | None = None
) -> Comparison:
    """Compare two sides; ``keys`` empty: by position. ``columns`` empty: all that both have."""
    _check(old, new, [*keys, *columns], label)
    if not keys:
        why = why_not_by_position(old, new)
        if why:
            raise ArgumentError(_by_key(why))
    common = [name for name in new.schema.names if name in old.schema.names and name not in keys]
    chosen = columns or [name for name in common if name != label]
    if not chosen:
        raise ArgumentError(
            f"compare: {old.name} and {new.name} have no column in common{' but the keys' if keys else ''}, so there "
            "is nothing to compare."
        )
    read = tuple(
        [
            name
            for name in dict.fromkeys([*keys, *chosen, *([label] if label else [])])
            if name in side.schema.names
        ]
        for side in (old, new)
    )
    measure = Measure(chosen, sample, label)
    if keys:
        by_key(old, new, keys, (read[0], read[1]), measure)
    else:
        by_position(old, new, (read[0], read[1]), measure)
    return Comparison.of(old, new, keys, measure)


def _by_key(why: str) -> str:
    return (
        f"compare: rows cannot be paired by their position, as {why}. Say which column or columns tell a row: "
        "on='key'."
    )


def check_against(against: Against, sink: Mapping[str, Any]) -> None:
    """Raise what comparing with an output would, as far as it is known before there is a new one in ``sink``."""
    kind_read(sink, "the output")
    if not against.on and why_divided(sink):
        raise ArgumentError(_by_key(f"in the output, {why_divided(sink)}"))
    with opened(against.path, "old") as old:
        _check(old, old, against.on, None)
    if against.on:
        library("require", "duckdb", "sql")


def compare_against(against: Against, place: Place, run: SavedRun) -> Comparison:
    """Compare a run, which may not be published yet, with what it is to be compared with."""
    with opened(against.path, "old") as old:
        return compared(old, of_run(place, run), list(against.on), [], 0)


def _check(old: Rows, new: Rows, names: Sequence[str], label: str | None) -> None:
    for side in (old, new):
        for name in names:
            if name not in side.schema.names:
                raise UnknownColumn(
                    f"compare: {side.name} has no column {name!r}.{nearest(name, side.schema.names)}"
                )
    either = [*old.schema.names, *new.schema.names]
    if label is not None and label not in either:
        raise UnknownColumn(
            f"compare: label={label!r}: neither side has such a column.{nearest(str(label), either)}"
        )


def _names(argument: str, given: str | Sequence[str] | None) -> list[str]:
    names = [given] if isinstance(given, str) else list(given or ())
    if (given is not None and not names) or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(
            f"compare: {argument}={given!r}: it takes the name of a column, or a list of names."
        )
    return names
