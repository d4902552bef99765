"""What is known of many runs, as a value: printed, a table; and as Arrow, a page, and in a notebook."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.annex.report.page import flat
from headrace.annex.report.results import number as number_words
from headrace.annex.report.template import Value, chart, made_page, plain, table, table_of, write_page
from headrace.core.asked import RequirementsAsked
from headrace.core.human import duration, plural
from headrace.core.tables import Table
from headrace.core.terminal import cut, one_line, wrapped
from headrace.observers.words import money
from headrace.output.journal_state import time_text

if TYPE_CHECKING:
    import pyarrow as pa

_WIDTH = 80  # columns, where nobody knows how many there are
_NAME = 24  # columns of a metric's name
_CHARTS = 24  # of a page
_POINTS = 1_000  # of a chart


class RunRow(msgspec.Struct, frozen=True):
    """One run: what it is of, how it is, and what it came to.

    ``status`` is a word of ``headrace status``, or ``unreadable``. ``rows`` and ``rejected`` are those of the whole
    output as of this run, None if nothing says so. ``metrics`` are results by name. ``cost`` is that of language
    models, None where it is not known. ``required``: what was asked of it and decided, None if nothing was. ``code``
    has a digest of the functions, ``models`` the steps with digests of their models. Times are seconds since 1970, 0
    if not known.
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
        found = flat(self.metrics).items()
        known = {name: each["value"] if isinstance(each, Mapping) else each for name, each in found}
        return {name: float(each) for name, each in known.items() if isinstance(each, int | float)}

    @property
    def prompts(self) -> list[str]:
        """The versions of its prompts."""
        return [
            name for _, digest in self.models for kind, _, name in [digest.partition(" ")] if kind == "prompt"
        ]

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
        """Return the table, in lines of at most ``width`` characters, with what is wrong with runs below it."""
        drawn = ["", self.table().text(width)] if self._rows else []
        notes = [wrapped(each, width) for each in self._notes()]
        return "\n".join([f"{self.place}: {self.sentence}", *drawn, *([""] if notes else []), *notes])

    @property
    def sentence(self) -> str:
        """How many there are, and how many of them are how."""
        counts = Counter(row.status for row in self._rows)
        noun = "run" if self.history else "output"
        listed = ", ".join(f"{number:,} {status}" for status, number in counts.items())
        return plural(len(self._rows), noun) + (f": {listed}" if listed else "")

    def name_of(self, row: RunRow) -> str:
        """Return what a row is called in the table: an output by its path from the place on, a run by its name."""
        if self.history:
            return row.run or str(row.number)
        return row.output.removeprefix(self.place.rstrip("/")).strip("/") or row.output

    def table(self) -> Table:
        """Return the table of one run or more as words. Columns of which nothing is known are left out."""
        names = list(dict.fromkeys(name for row in self._rows for name in row.numbers))
        columns: list[tuple[str, Callable[[RunRow], str]]] = [
            ("Run" if self.history else "Output", self.name_of),
            ("Status", lambda row: row.status),
            ("Rows", lambda row: "" if row.rows is None else f"{row.rows:,}"),
            ("Rejected", lambda row: "" if row.rejected is None else f"{row.rejected:,}"),
            *((cut(one_line(name), _NAME), functools.partial(_metric, name)) for name in names),
            ("Cost", lambda row: "" if row.cost is None else money(row.cost)),
            ("Prompt", lambda row: ", ".join(row.prompts)),
            ("Required", lambda row: "" if row.required is None else row.required.verdict),
            ("Age", self.age),
        ]
        made = [(name, [words(row) for row in self._rows]) for name, words in columns]
        heading, cells = zip(*(each for each in made if any(each[1])), strict=True)
        numbers = {i for i, name in enumerate(heading) if i and name not in ("Status", "Prompt", "Required")}
        return Table(heading, list(zip(*cells, strict=True)), numbers=numbers)

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

        text, whole, real, moment = pa.string(), pa.int64(), pa.float64(), pa.timestamp("ms", "UTC")
        models = pa.list_(pa.struct({"step": text, "digest": text}))
        schema = pa.schema({
            "output": text, "run": text, "number": pa.int32(), "status": text, "published": pa.bool_(),
            "rows": whole, "rejected": whole, "bytes": whole, "metrics": pa.map_(text, real), "cost": real,
            "required": text, "code": pa.list_(text), "models": models, "version": text,
            "began": moment, "ended": moment, "seconds": real, "error": text,
        })  # fmt: skip
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
        """Write a page with the table, and each metric over time; return its path.

        Raises ``OutputWriteFailed`` if it cannot be written.
        """
        return write_page(path, made_page(self._page()))

    def _page(self) -> Value:
        figures: Value = {}
        listed = [table_of("The latest first", self.table())] if self._rows else []
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
            points = [[row.began, row.numbers[name], row.published, self.name_of(row)] for row in rows[::-1]]
            figures[key] = {"kind": "runs", "points": points, "joined": self.history}
            unseen = sum(not row.published for row in rows)
            words = f"{plural(len(rows), 'run')}, {unseen:,} of them not published."
            shown = [(self.name_of(row), row.status, _metric(name, row)) for row in rows]
            made = table(name, ("Run", "Status", name), shown, words=(0, 1))
            label = f"{name} of each run over time. {words}"
            found.append(chart(key, f"{name} over time", words, label, made))
        return found

    def _notes(self) -> list[str]:
        return [f"{self.name_of(row)}: {row.trouble}" for row in self._rows if row.trouble]

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from headrace.core.tables import card

        drawn = [msgspec.structs.replace(self.table(), note="; ".join(self._notes()))] if self._rows else []
        return card(f"{self.place}: {self.sentence}", (), *drawn)


def _metric(name: str, row: RunRow) -> str:
    return number_words(row.numbers[name]) if name in row.numbers else ""


def _moment(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, tz=UTC) if seconds else None
