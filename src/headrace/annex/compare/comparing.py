"""``hr.compare``: two outputs, tables, files or datasets, row by row, and the value that says what was found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.annex.compare.measure import Measure
from headrace.annex.compare.pairs import (
    by_key,
    by_position,
    why_divided,
    why_not_by_position,
    why_not_in_place,
)
from headrace.annex.compare.sides import Rows, format_read, of_run, opened
from headrace.core.arguments import known_arguments
from headrace.core.door import annex, library
from headrace.core.human import percent, plural
from headrace.core.tables import Table, card
from headrace.core.terminal import one_line
from headrace.errors import ArgumentError, MissingLibrary, UnknownColumn, nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.dataset.dataset import Dataset
    from headrace.output.places.place import Place
    from headrace.output.runs import SavedRun
    from headrace.plan.logical import Against


_SHOWN = 20  # columns in a text


@dataclass(frozen=True)
class Comparison:
    """What ``hr.compare`` has found; ``print(comparison)`` shows it.

    Attributes
    ----------
    old, new
        What was compared.
    on
        The columns that rows were paired by; empty: by their position.
    rows
        How many rows both sides have.
    same, different
        How many of these are the same in all columns that were compared, and how many are not.
    only_old, only_new
        How many rows one side alone has; None of them where rows are paired by position.
    changed
        The share of all rows, also of those that one side alone has, that are not the same: from 0 to 1.
    columns
        For each column that was compared what ``Differences`` counts, and more. ``types``: old and new. ``chart``:
        plain data for drawing. ``worst``: the rows that changed most, each with ``row`` (its position), ``old``,
        ``new``, ``difference`` and ``inputs``, its other columns. ``judged``, by the label: a dict with ``metric``,
        ``old``, ``new`` and ``difference``, each with its interval of 95 %, ``p`` and ``significant``; else None.
    left_out
        Columns that only ``"old"`` has, and those that only ``"new"`` has.
    lone
        Some of the rows that only ``"old"`` has, and of those that only ``"new"`` has.
    """

    old: str
    new: str
    on: tuple[str, ...]
    rows: int
    different: int
    only_old: int
    only_new: int
    columns: dict[str, dict[str, Any]]
    left_out: dict[str, list[str]] = field(default_factory=dict)
    lone: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def same(self) -> int:
        """How many rows are the same."""
        return self.rows - self.different

    @property
    def changed(self) -> float:
        """The share of all rows that are not the same."""
        every = self.rows + self.only_old + self.only_new
        return (every - self.same) / every if every else 0.0

    @classmethod
    def of(cls, old: Rows, new: Rows, keys: Sequence[str], measure: Measure) -> Comparison:
        """Return what was counted."""
        columns = {}
        for name, differences in measure.columns.items():
            judged = measure.judged[name].result() if name in measure.judged else None
            columns[name] = {
                "types": [str(side.schema.field(name).type) for side in (old, new)],
                **differences.result(),
                "note": differences.note(),
                "judged": judged,
                "chart": differences.chart(),
                "worst": [shown | ({"row": None} if keys else {}) for *_, shown in measure.worst[name]],
            }
        names = [set(side.schema.names) for side in (old, new)]
        return cls(
            old.name,
            new.name,
            tuple(keys),
            measure.rows,
            measure.changed,
            measure.lone["old"],
            measure.lone["new"],
            columns,
            {"old": sorted(names[0] - names[1]), "new": sorted(names[1] - names[0])},
            measure.lone_rows,
        )

    # ------------------------------------------------------------ shown

    def __str__(self) -> str:
        lines = [f"{self.old} and {self.new}, {self._paired}", f"  {self.sentence}"]
        if self._moved:
            rows = [_HEAD, *self._lines()]
            drawn = Table((), rows, numbers=range(1, len(_HEAD))).text()
            lines += [f"  {line}" for line in drawn.splitlines()]
        lines += [f"  {name}: {words}" for name, words in self._notes()]
        lines += [f"  {words}" for words in self.judgements()]
        return "\n".join(map(one_line, lines))

    __repr__ = __str__

    @property
    def _paired(self) -> str:
        return f"by {', '.join(self.on)}" if self.on else "by position"

    @property
    def _moved(self) -> list[str]:
        return [name for name, each in self.columns.items() if each["changed"]]

    def _lines(self) -> list[tuple[str, ...]]:
        """Return a line for each of the first columns in which something changed."""
        return [_line(name, self.columns[name]) for name in self._moved[:_SHOWN]]

    def _notes(self) -> list[tuple[str, str]]:
        """Return what the lines do not say: which columns are the same, were left out, or changed, too."""
        found = [
            ("also changed", self._moved[_SHOWN:]),
            ("the same", [name for name in self.columns if name not in self._moved]),
        ]
        found += [(f"only in {side}", names) for side, names in self.left_out.items()]
        notes = [(name, each["note"]) for name, each in self.columns.items() if each["note"]]
        return [*((name, _listed(names)) for name, names in found if names), *notes]

    @property
    def sentence(self) -> str:
        """What became of the rows, in words."""
        words = f"{plural(self.rows, 'row')} in both: {self.same:,} the same, {self.different:,} changed"
        lone = f"; {self.only_old:,} only in old, {self.only_new:,} only in new" if self.on else ""
        return f"{words}{lone} ({_percent(self.changed)} not the same)"

    def judgements(self) -> list[str]:
        """Return a line for each column that was judged by a label, and is not the same."""
        lines = []
        for name, each in self.columns.items():
            found = each["judged"]
            if found is not None and each["changed"]:
                old, new, by = (found[side] for side in ("old", "new", "difference"))
                chance = "significant" if found["significant"] else "may be chance"
                p = f"p = {found['p']:.2g}" if found["p"] >= 0.001 else "p < 0.001"
                lines.append(
                    f"{name}: {found['metric']} {old['value']:.4g} → {new['value']:.4g}, {by['value']:+.3g} "
                    f"({by['low']:+.3g} to {by['high']:+.3g}; {p}: {chance})"
                )
        return lines

    def _repr_html_(self) -> str:
        """Show in a notebook what became of the rows, and a line for each column in which something changed."""
        facts = [("rows", self.sentence), ("paired", self._paired), *self._notes()]
        facts += [("judged", each) for each in self.judgements()]
        tables = [Table(_HEAD, self._lines(), numbers=range(1, len(_HEAD)))] if self._moved else []
        return card(f"Comparison: {self.old}, {self.new}", facts, *tables)

    # ------------------------------------------------------------ taken along

    def to_arrow(self) -> pa.Table:
        """Return a table with a row for each column: what ``columns`` says of it, as far as it is numbers and text.

        >>> Comparison("a", "b", (), 0, 0, 0, 0, {}).to_arrow().num_rows
        0
        """
        import pyarrow as pa

        schema = pa.schema(
            [("column", pa.string()), ("old_type", pa.string()), ("new_type", pa.string())]
            + [(name, pa.int64()) for name in _COUNTS]
            + [(name, pa.float64()) for name in (*_NUMBERS, *_DIFFERENCE)]
        )
        rows = [
            {
                "column": name,
                **dict(zip(("old_type", "new_type"), each["types"], strict=True)),
                **{number: each[number] for number in (*_COUNTS, *_NUMBERS)},
                **(each["difference"] or {}),
            }
            for name, each in self.columns.items()
        ]
        return pa.Table.from_pylist(rows, schema)

    def data(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        from headrace.core.metric_states import plain

        names = ("old", "new", "on", "rows", "same", "different", "only_old", "only_new", "changed")
        found: dict[str, Any] = plain(
            {name: getattr(self, name) for name in (*names, "columns", "left_out", "lone")}
        )
        return found

    @property
    def report(self) -> str:
        """The page about it, as HTML; raises ``MissingLibrary`` where Headrace was installed without its reports."""
        pages = annex("report.page")
        if pages is None:
            raise MissingLibrary("Comparison.report: this installation of Headrace has no reports.")
        lines = [_line(name, each) for name, each in self.columns.items()]
        page: bytes = pages.differences_page(self.data(), self.sentence, _HEAD, lines, self.judgements())
        return page.decode()

    def write_report(self, path: str | os.PathLike[str]) -> Path:
        """Write the page about it into a file, and return where it is. Raises ``OutputWriteFailed`` if it cannot.

        The page is one file, which needs no network; like the report of a run, only its owner may read it. It shows
        values of rows.
        """
        page, pages = self.report.encode(), annex("report.template")
        assert pages is not None
        written: Path = pages.write_page(path, page)
        return written


_COUNTS = ("rows", "changed", "filled", "emptied")
_NUMBERS = ("share", "psi", "ks")
_DIFFERENCE = ("least", "q1", "q25", "q50", "q75", "q99", "most")
_HEAD = ("column", "changed", "share", "least", "median", "most", "psi", "ks")


def _line(name: str, each: dict[str, Any]) -> tuple[str, ...]:
    by = each["difference"] or {}
    numbers = [by.get("least"), by.get("q50"), by.get("most"), each["psi"], each["ks"]]
    return name, f"{each['changed']:,}", _percent(each["share"]), *(_number(value) for value in numbers)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _percent(share: float) -> str:
    return percent(share, 0 if share >= 0.1 or not share else 2)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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
    chosen = columns or common
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


def check_against(against: Against, sink: Mapping[str, Any], column: str | None = None) -> None:
    """Raise what comparing with an output would, as far as it is known before there is a new one in ``sink``.

    ``column``: one that is asked for.
    """
    format_read(sink, "the output")
    if not against.on and why_divided(sink):
        raise ArgumentError(_by_key(f"in the output, {why_divided(sink)}"))
    with opened(against.path, "old") as old:
        if not against.on and (why := why_not_in_place(old)):
            raise ArgumentError(_by_key(why))
        _check(old, old, [*against.on, *([] if column is None else [column])], None)
    if against.on:
        library("require", "duckdb", "sql")


def compare_against(against: Against, place: Place, run: SavedRun) -> Comparison:
    """Compare a run, which may not be published yet, with what it is to be compared with.

    Raises ``UnknownColumn`` if it lacks a column of another output: the other columns do not say what became of it.
    """
    with opened(against.path, "old") as old:
        new = of_run(place, run)
        _check(new, new, old.schema.names if old.run is not None else [], None)
        return compared(old, new, list(against.on), [], 0)


def _check(old: Rows, new: Rows, names: Sequence[str], label: str | None) -> None:
    for side in (old, new):
        for name in names:
            if name not in side.schema.names:
                raise UnknownColumn(
                    f"compare: {side.name} has no column {name!r}."
                    + (nearest(name, side.schema.names) or f" It has {', '.join(side.schema.names)}.")
                )
    either = [*old.schema.names, *new.schema.names]
    if label is not None and label not in either:
        raise UnknownColumn(
            f"compare: label={label!r}: neither side has such a column.{nearest(str(label), either)}"
        )


def _names(argument: str, given: str | Sequence[str] | None) -> list[str]:
    names = [given] if isinstance(given, str) or not isinstance(given, Iterable | None) else list(given or ())
    if (given is not None and not names) or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(
            f"compare: {argument}={given!r}: it takes the name of a column, or a list of names."
        )
    return names
