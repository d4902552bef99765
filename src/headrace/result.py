"""What a write verb returns."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.core.cards import Link, Table, Words, card
from headrace.core.human import duration, plural, size
from headrace.core.work import REJECTED, Ledger


class Metrics(dict[str, Any]):
    """Results of metrics by name; ``notes`` has, for some, words beside them, such as why there is none.

    >>> found = Metrics({"auc": None}, notes={"auc": "all rows are positive: there is nothing to rank"})
    >>> found["auc"], found.notes["auc"]
    (None, 'all rows are positive: there is nothing to rank')
    """

    def __init__(
        self, results: Mapping[str, Any] = MappingProxyType({}), *, notes: Mapping[str, str]
    ) -> None:
        super().__init__(results)
        self.notes = dict(notes)


@dataclass(frozen=True)
class Result:
    """The outcome of a finished run; ``print(result)`` shows a short summary.

    Attributes
    ----------
    rows
        Rows in the output.
    rejected
        Rows that were set aside because they could not be processed.
    metrics
        Results of metrics by name, a dict; its ``notes`` has words beside some of them, such as why there is none.
    ledger
        Where every row went: ``read``, ``written``, ``rejected``, and (in, out) for each step.
    report
        Path of the run's report, a page for a browser: ``OUT/_headrace/<run>/report.html``. The same for machines is
        in ``OUT/_SUCCESS``, and what happened in ``events.jsonl`` beside the report.
    path
        The output folder.
    run
        The run's name, which is part of its files' names.
    files, bytes
        How many files the output has, and their size.
    seconds
        Wall time over all drivers that worked on the run.
    resumed
        True if an earlier driver had begun it.
    left_out
        Input files that came after the run was planned; none of their rows is in the output.
    """

    rows: int
    rejected: int
    metrics: dict[str, Any]
    ledger: Ledger
    report: Path
    path: Path
    run: str
    files: int
    bytes: int
    seconds: float
    resumed: bool = False
    left_out: tuple[str, ...] = ()
    summary: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        """Show in a notebook the numbers, the metrics, some rejected rows and where the report is."""
        return result_html(self)


_REJECTED = 5  # rows that are shown
_REASON = ("_error_type", "_error", "_step", "_file", "_row")


def result_html(result: Result) -> str:
    """Return a result as a notebook shows it; of rejected rows, why and where, but none of their values."""
    ledger = result.ledger
    facts: list[tuple[str, Words]] = [
        ("rows", f"{ledger.read:,} in, {result.rows:,} out, {result.rejected:,} rejected"),
        ("took", duration(result.seconds) + (" over all drivers" if result.resumed else "")),
        ("output", f"{result.path} ({plural(result.files, 'file')}, {size(result.bytes)})"),
        ("report", Link(result.report.name, result.report)),
    ]
    tables = []
    if result.metrics:
        tables.append(
            Table(("metric", "result"), [(name, str(found)) for name, found in result.metrics.items()])
        )
    if result.rejected:
        tables.append(_rejected_table(result))
    return card("Result: complete", facts, *tables)


def _rejected_table(result: Result) -> Table:
    """Return the first rejected rows: why they are, and where they stood."""
    rows = [
        (f"{kind}: {words}", str(step), f"{file}, row {row}" if row is not None else str(file))
        for kind, words, step, file, row in _first_rejected(result.path / REJECTED)
    ]
    note = f"{result.rejected:,} rejected rows: hr.read_rejected({str(result.path)!r}) reads them"
    return Table(("rejected for", "by", "from"), rows, note)


def _first_rejected(folder: Path) -> list[tuple[Any, ...]]:
    """Read why the first rows were rejected; none of what cannot be read."""
    import pyarrow as pa

    found: list[tuple[Any, ...]] = []
    with contextlib.suppress(OSError, pa.ArrowException, KeyError):
        for path in sorted(folder.glob("*.arrow")):
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as batches:
                for i in range(batches.num_record_batches):
                    batch = batches.get_batch(i).select(_REASON).slice(0, _REJECTED - len(found))
                    found += [tuple(row.values()) for row in batch.to_pylist()]
                    if len(found) >= _REJECTED:
                        return found
    return found
