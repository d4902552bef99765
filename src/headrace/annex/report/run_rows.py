"""What is known of many runs, as a value: printed, a table; and as Arrow, a page, and in a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from headrace.annex.report.comparison import flat
from headrace.annex.report.metrics import number as number_words
from headrace.annex.report.values import Value, chart, plain, table
from headrace.core.events import RequirementsAsked
from headrace.core.human import duration, plural
from headrace.core.terminal import one_line, wrapped
from headrace.observers.model_text import money
from headrace.output.run_list import time_text
from headrace.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

_WIDTH = 80  # columns, where nobody knows how many there are
_NAME = 20  # characters of an output's name that are left, however many metrics there are
_CHARTS = 24  # of a page
_POINTS = 1_000  # of a chart


class RunRow(msgspec.Struct, frozen=True):
    """One run: what it is of, how it is, and what it came to.

    ``status`` is a word of ``headrace status``. ``rows`` and ``rejected`` are those of the whole output as of this
    run, None if nothing says so. ``metrics`` are results by name. ``cost`` is that of language models, None where it
    is not known. ``required``: what was asked of it and decided, None if nothing was. ``code`` has a digest of the
    functions, ``models`` the steps with digests of their models. Times are seconds since 1970, 0 if not known.
    """

    output: str
    status: str
    run: str = ""
    number: int = 1
    rows: int | None = None
    rejected: int | None = None
    bytes: int = 0
    metrics: Mapping[str, Any] = {}
    cost: float | None = None
    required: RequirementsAsked | None = None
    code: tuple[str, ...] = ()
    models: tuple[tuple[str, str], ...] = ()
    version: str = ""
    commit: str = ""
    began: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0
    error: str = ""

    @property
    def published(self) -> bool:
        """True if readers see it, or saw it when it had ended."""
        return self.status == "complete"

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are numbers, those inside others as ``name: field``."""
        found = {
            name: each.get("value") if isinstance(each, Mapping) else each
            for name, each in flat(self.metrics).items()
        }
        return {name: float(each) for name, each in found.items() if isinstance(each, int | float)}

    @property
    def trouble(self) -> str:
        """What is wrong with it, or what somebody has decided, in one line; "" if nothing is."""
        if self.required is not None and self.required.verdict != "met":
            return one_line(str(self.required))
        return "" if self.status == "interrupted" else one_line(self.error.strip().partition("\n")[0])


@dataclass(frozen=True, slots=True)
class Runs:
    """What ``hr.runs`` returns: a sequence of runs, the latest first; printed, it is a table.

    Attributes
    ----------
    place
        The folder or address that was asked for.
    history
        True if ``place`` is one output, and these are its runs. Else each is the last run of an output below it.
    """

    place: str
    history: bool
    _rows: tuple[RunRow, ...]
    _now: float
    words: ClassVar = ("Output", "Run", "Status", "Required")  # columns of the table that are no numbers

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RunRow]:
        return iter(self._rows)

    def __getitem__(self, index: int) -> RunRow:
        return self._rows[index]

    def __str__(self) -> str:
        return self.text(_WIDTH)

    __repr__ = __str__

    def text(self, width: int) -> str:
        """Return the table, in lines of at most ``width`` characters."""
        from io import StringIO

        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        if not self._rows:
            return f"{self.place}: {self.sentence}"
        head, cells = self.cells()
        widths = [max(map(cell_len, column)) for column in zip(head, *cells, strict=True)]
        metrics = [name for name in head[1:] if name not in (*self.words, "Rows", "Rejected", "Cost", "Age")]
        left = metrics[:]
        while left and sum(widths[1:]) + 2 * len(widths[1:]) + min(widths[0], _NAME) > width:
            at = head.index(left.pop())  # names of outputs are worth more than the last metrics
            del head[at], widths[at]
            for row in cells:
                del row[at]
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        widths[0] = min(widths[0], max(_NAME // 2, width - sum(widths[1:]) - 2 * len(widths[1:])))
        for name, characters in zip(head, widths, strict=True):
            side: Any = "left" if name in self.words else "right"
            drawn.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", width=characters)
        for row in cells:
            drawn.add_row(*(Text(one_line(cell)) for cell in row))
        stream = StringIO()
        Console(
            file=stream, width=sum(widths) + 2 * len(widths), color_system=None, legacy_windows=False
        ).print(drawn)
        lines = [line.rstrip() for line in stream.getvalue().splitlines()]
        hidden = (
            [f"There is no room for {', '.join(metrics[len(left) :])}."] if len(left) < len(metrics) else []
        )
        notes = [wrapped(each, width) for each in (*hidden, *self._notes())]
        return "\n".join([f"{self.place}: {self.sentence}", "", *lines, *([""] if notes else []), *notes])

    @property
    def sentence(self) -> str:
        """How many there are, and how many of them are how."""
        counts: dict[str, int] = {}
        for row in self._rows:
            counts[row.status] = counts.get(row.status, 0) + 1
        noun = "run" if self.history else "output"
        listed = ", ".join(f"{number:,} {status}" for status, number in counts.items())
        return plural(len(self._rows), noun) + (f": {listed}" if listed else "")

    def name_of(self, row: RunRow) -> str:
        """Return what a row is called in the table: an output by its path from the place on, a run by its number."""
        if self.history:
            return str(row.number)
        return row.output.removeprefix(self.place.rstrip("/")).strip("/") or row.output

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the table as words: headings and rows. Columns of which nothing is known are left out."""
        names = list(dict.fromkeys(name for row in self._rows for name in row.numbers))
        columns: list[tuple[str, list[str]]] = [
            (self._first, [self.name_of(row) for row in self._rows]),
            ("Status", [row.status for row in self._rows]),
            ("Rows", [_count(row.rows) for row in self._rows]),
            ("Rejected", [_count(row.rejected) for row in self._rows]),
            *((name, [_metric(row, name) for row in self._rows]) for name in names),
            ("Cost", ["" if row.cost is None else money(row.cost) for row in self._rows]),
            ("Required", ["" if row.required is None else row.required.verdict for row in self._rows]),
            ("Age", [self.age(row) for row in self._rows]),
        ]
        kept = [(name, cells) for name, cells in columns if any(cells)]
        return [name for name, _ in kept], [
            list(row) for row in zip(*(cells for _, cells in kept), strict=True)
        ]

    def age(self, row: RunRow) -> str:
        """Return how long ago a run ended, or how long it has been under way; "" if nobody knows."""
        since = row.began if row.status == "under way" else row.ended
        return " ".join(duration(max(0.0, self._now - since)).split()[:2]) if since else ""

    def data(self) -> list[dict[str, Any]]:
        """Return plain values, a dict for each run; times are texts in UTC."""
        return [
            {
                **msgspec.to_builtins(row, enc_hook=str),
                "models": [{"step": step, "digest": digest} for step, digest in row.models],
                "began": time_text(row.began),
                "ended": time_text(row.ended),
                "published": row.published,
            }
            for row in self._rows
        ]

    def to_arrow(self) -> pa.Table:
        """Return a table with a row for each run.

        ``metrics`` is a map of the numbers among the metrics by name, ``required`` the verdict, and ``began`` and
        ``ended`` are timestamps in UTC.
        """
        import pyarrow as pa

        model = pa.struct([("step", pa.string()), ("digest", pa.string())])
        schema = pa.schema(
            [
                *((name, pa.string()) for name in ("output", "run")),
                ("number", pa.int32()),
                ("status", pa.string()),
                ("published", pa.bool_()),
                *((name, pa.int64()) for name in ("rows", "rejected", "bytes")),
                ("metrics", pa.map_(pa.string(), pa.float64())),
                ("cost", pa.float64()),
                ("required", pa.string()),
                ("code", pa.list_(pa.string())),
                ("models", pa.list_(model)),
                *((name, pa.string()) for name in ("version", "commit")),
                *((name, pa.timestamp("ms", "UTC")) for name in ("began", "ended")),
                ("seconds", pa.float64()),
                ("error", pa.string()),
            ]
        )
        rows = [
            {
                **told,
                "metrics": list(row.numbers.items()),
                "required": None if row.required is None else row.required.verdict,
                "began": _moment(row.began),
                "ended": _moment(row.ended),
            }
            for told, row in zip(self.data(), self._rows, strict=True)
        ]
        return pa.Table.from_pylist(rows, schema)

    def write_report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page with the table, and each metric over time; return its path. Raises ``OSError``."""
        from headrace.annex.report.page import plain_page
        from headrace.annex.report.writing import write

        place = Path(path).expanduser().absolute()
        write(place, plain_page(self._page(), made=self._now, version=__version__))
        return place

    def _page(self) -> Value:
        figures: Value = {}
        head, cells = self.cells() if self._rows else ([], [])
        texts = [i for i, name in enumerate(head) if name in self.words]
        listed = [table("The latest first", head, cells, words=texts)] if cells else []
        sections = {
            "runs" if self.history else "outputs": plain(tables=[*listed, *self._notes()]),
            "metrics": plain(charts=self._over_time(figures)),
        }
        return {
            "title": f"{self.sentence} – {self.place}",
            "place": self.place,
            "sentence": f"{self.sentence}.",
            "sections": [each for each in sections.items() if each[1]["charts"] or each[1]["tables"]],
            "figures": figures,
        }

    def _over_time(self, figures: Value) -> list[Value]:
        """Return a chart of each metric that several runs have, and put what it draws into ``figures``."""
        found = list[Value]()
        for name in dict.fromkeys(name for row in self for name in row.numbers):
            rows = [row for row in self._rows if name in row.numbers and row.began][:_POINTS]
            if len(rows) < 2 or len(found) == _CHARTS:
                continue
            key = f"over-time-{len(found)}"
            points = [
                [row.began, row.numbers[name], row.published, self.name_of(row)] for row in reversed(rows)
            ]
            figures[key] = {"kind": "runs", "points": points, "joined": self.history}
            unseen = sum(not row.published for row in rows)
            words = f"{plural(len(rows), 'run')}, {unseen:,} of them not published."
            shown = [(self.name_of(row), row.status, _metric(row, name)) for row in rows]
            numbers = table(name, (self._first, "Status", name), shown, words=(0, 1))
            found.append(
                chart(key, f"{name} over time", words, f"{name} of each run over time. {words}", numbers)
            )
        return found

    def _notes(self) -> list[str]:
        return [f"{self.name_of(row)}: {row.trouble}" for row in self._rows if row.trouble]

    @property
    def _first(self) -> str:
        return "Run" if self.history else "Output"

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from headrace.core.cards import card
        from headrace.core.tables import Table

        head, cells = self.cells() if self._rows else ([], [])
        notes = "; ".join(f"{self.name_of(row)}: {row.trouble}" for row in self._rows if row.trouble)
        return card(f"{self.place}: {self.sentence}", (), *([Table(head, cells, notes)] if cells else []))


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _metric(row: RunRow, name: str) -> str:
    return number_words(row.numbers[name]) if name in row.numbers else ""


def _moment(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, tz=UTC) if seconds else None
