"""What a comparison has found: a value that can be printed, stored, and shown as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.annex.compare.measure import Measure
from headrace.core import cards
from headrace.core.door import annex
from headrace.core.human import percent, plural
from headrace.core.tables import Table
from headrace.core.terminal import one_line
from headrace.errors import MissingLibrary, OutputWriteFailed

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.annex.compare.rows import Rows

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
        by = f"by {', '.join(self.on)}" if self.on else "by position"
        lines = [f"{self.old} and {self.new}, {by}", f"  {self.sentence}"]
        moved = {name: each for name, each in self.columns.items() if each["changed"]}
        if moved:
            rows = [_HEAD, *(_line(name, each) for name, each in moved.items())][: _SHOWN + 1]
            drawn = Table((), rows, numbers=range(1, len(_HEAD))).text()
            lines += [f"  {line}" for line in drawn.splitlines()]
        if len(moved) > _SHOWN:
            lines.append(f"  … and {plural(len(moved) - _SHOWN, 'more column')}")
        same = [name for name in self.columns if name not in moved]
        if same:
            lines.append(f"  the same: {_listed(same)}")
        lines += [f"  only in {side}: {_listed(names)}" for side, names in self.left_out.items() if names]
        lines += [f"  {name}: {each['note']}" for name, each in self.columns.items() if each["note"]]
        lines += [f"  {words}" for words in self.judgements()]
        return "\n".join(map(one_line, lines))

    __repr__ = __str__

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
        """Show in a notebook what became of the rows, and a line for each column."""
        facts = [
            ("rows", self.sentence),
            ("paired", f"by {', '.join(self.on)}" if self.on else "by position"),
        ]
        rows = [_line(name, each) for name, each in self.columns.items()]
        tables = [Table(_HEAD, rows[:_SHOWN], f"{plural(len(rows), 'column')} in all")]
        return cards.card(
            f"Comparison: {self.old}, {self.new}",
            [*facts, *(("judged", each) for each in self.judgements())],
            *tables,
        )

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
        place = Path(path).expanduser().absolute()
        try:
            from headrace.core.files import safe_files

            safe_files.write(place, self.report.encode(), lasting=False)
        except OSError as error:
            raise OutputWriteFailed(f"write_report: {place} cannot be written: {error.strerror}.") from error
        return place


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
    digits = 0 if share >= 0.1 or not share else 2
    return percent(share, digits) if not 0 < share < 0.0001 else "less than 0.01 %"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
