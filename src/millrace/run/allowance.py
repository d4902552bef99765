"""How many rows may fail. Pure, but for what it remembers."""

from __future__ import annotations

from millrace.core.events import Event, RowsRead
from millrace.core.work import Done, Faults, Ledger, Outcome
from millrace.errors import TooManyErrors

SAMPLE = 1_000  # rows that have to be read before a share of them says something
KINDS = 5  # of errors that a message tells apart


class Allowance:
    """Counts the rows that failed, in shards that are done and under way, and says when they are too many.

    >>> from millrace.core.work import Fault, Timings
    >>> allowance = Allowance(2)
    >>> faults = Faults(((Fault("map(parse)", "ValueError", "no number: 'x'"), 3),))
    >>> allowance.check(Done(0, 0, (), Ledger(100, 97, 3), Timings(), faults=faults))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    millrace.errors.TooManyErrors: 3 of the 100 rows read so far failed, more than max_errors=2 allows: ...
    """

    def __init__(
        self, most: float | None = None, ledger: Ledger | None = None, faults: Faults | None = None
    ) -> None:
        """``ledger`` and ``faults`` are those of earlier drivers of the run."""
        self._most = most
        self._read = ledger.read if ledger is not None else 0
        self._faults = faults or Faults()
        self._open: dict[int, tuple[int, Faults]] = {}  # by shard: rows read so far, and how many failed

    def hear(self, event: Event) -> None:
        """Take what a worker tells of a shard that is under way."""
        if self._most is not None and isinstance(event, RowsRead) and event.faults.counts:
            self._open[event.shard] = event.rows, event.faults
            self._judge()

    def check(self, outcome: Outcome) -> None:
        """Take what came of an attempt, before it is committed."""
        if self._most is None:
            return
        self._open.pop(outcome.shard, None)
        if isinstance(outcome, Done):
            self._read += outcome.ledger.read
            self._faults += outcome.faults
            self._judge()

    def _judge(self) -> None:
        assert self._most is not None
        read = self._read + sum(rows for rows, _ in self._open.values())
        faults = sum((each for _, each in self._open.values()), self._faults)
        share = 0 < self._most < 1
        most = self._most * read if share else self._most
        if faults.total > most and not (share and read < SAMPLE):
            raise TooManyErrors(
                f"{faults.total:,} of the {read:,} rows read so far failed, more than max_errors={self._most:g} "
                f"allows: {told(faults)}. What was committed is kept: mend the cause, or allow more and run again."
            )


def told(faults: Faults) -> str:
    """Say how often rows failed of what, the most frequent first."""
    counts = sorted(faults.counts, key=lambda each: -each[1])
    parts = [
        f"{count:,} in {fault.step} with {fault.kind}"
        + (f', such as "{fault.message}"' if fault.message else "")
        for fault, count in counts[:KINDS]
    ]
    rest = sum(count for _, count in counts[KINDS:])
    return "; ".join([*parts, f"{rest:,} others"] if rest else parts)
