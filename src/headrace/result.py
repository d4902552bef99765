"""What a write verb returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.core.work import Ledger


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
        in ``OUT/_SUCCESS``, and what happened in ``events.jsonl`` beside the report. With ``report=False`` nothing
        is there until ``headrace report OUT`` makes it.
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
    runs
        The runs of this output as ``_SUCCESS`` names them, the last one last: each a dict with ``run``, ``began``,
        ``ended``, ``seconds``, ``input_files``, ``rows_read``, ``rows``, ``rejected``, ``files``, ``bytes`` and
        ``code``. More than one where ``incremental=True`` took new input files in.
    """

    rows: int
    rejected: int
    metrics: dict[str, Any]
    ledger: Ledger
    report: Path | str
    path: Path | str
    run: str
    files: int
    bytes: int
    seconds: float
    resumed: bool = False
    left_out: tuple[str, ...] = ()
    runs: tuple[dict[str, Any], ...] = ()
    summary: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.summary

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show in a notebook the numbers, the metrics, some rejected rows and where the report is."""
        from headrace.core.tables import result_html

        return result_html(self)
