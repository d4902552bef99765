"""The runs of one output, as ``_SUCCESS`` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.core.human import duration, plural, size
from headrace.core.table_changes import position_text, taken_in
from headrace.observers.record_reader import lenient, listed

LATEST = 5  # in a list of lines


class OutputRun(msgspec.Struct, frozen=True):
    """One run: when it was, what it took in, and what is there of it now."""

    name: str = ""
    began: str = ""
    ended: str = ""
    seconds: float = 0.0
    input_files: int = 0
    input_files_again: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    code: tuple[str, ...] = ()
    input: str = ""  # up to which version it was read, if it has any

    @property
    def taken_in(self) -> str:
        """What was new, in words."""
        new = plural(self.input_files, "new input file")
        again = f"{plural(self.input_files_again, 'file')} again"
        if not self.input_files_again:
            return new
        return f"{new} and {again}" if self.input_files else again

    def __str__(self) -> str:
        made = f"{plural(self.rows, 'row')}, {size(self.bytes)} in {duration(self.seconds)}"
        return f"{self.began}, {taken_in(self.taken_in, self.input)}: {made}"


def runs_in(success: Mapping[str, Any]) -> tuple[OutputRun, ...]:
    """Return the runs that ``_SUCCESS`` names; what is no run is left out.

    >>> [str(run) for run in runs_in({"runs": [{"run": "k3f9a2xq", "began": "2026-11-23T03:00:00Z", "rows": 4}, 7]})]
    ['2026-11-23T03:00:00Z, 0 new input files: 4 rows, 0 B in 0.00 s']
    """
    return tuple(
        lenient(OutputRun, {**each, "name": each.get("run"), "input": position_text(each.get("input"))})
        for each in listed(success, "runs")
        if isinstance(each, dict)
    )


def lines_of(runs: tuple[OutputRun, ...]) -> list[tuple[str, str]]:
    """Return the latest runs of an output that has several: names and values."""
    if len(runs) < 2:
        return []
    numbered = list(enumerate(runs, 1))[-LATEST:]
    before = len(runs) - len(numbered)
    found = [(f"run {number}", str(run)) for number, run in numbered]
    return [*([("runs", f"{before:,} before these")] if before else []), *found]
