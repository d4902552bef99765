"""What is checked before a shard is committed: that all rows are accounted for, and that not too many failed."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.events import RowsRead, RunAsked
from headrace.core.work import Done, Failed, Faults, Ledger, OnError, Outcome, Task
from headrace.driver.policy import Decision, Policy, RunView
from headrace.driver.shards import split_off
from headrace.errors import TooManyErrors
from headrace.plan.accounts import Accounts

SAMPLE = 1_000  # rows that have to be read before a share of them is judged
KINDS = 5  # of errors that a message names


class ErrorBudget(Policy):
    """Counts the rows that failed, in finished and open shards; raises ``TooManyErrors`` if they are too many.

    >>> from headrace.core.work import Fault, Timings
    >>> budget = ErrorBudget(2)
    >>> faults = Faults(((Fault("map(parse)", "ValueError", "no number: 'x'"), 3),))
    >>> budget.count(Done(0, 0, (), Ledger(100, 97, 3), Timings(), faults=faults))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    headrace.errors.TooManyErrors: 3 of the 100 rows read so far failed, more than max_errors=2 allows: ...
    """

    def __init__(
        self, most: float | None = None, ledger: Ledger | None = None, faults: Faults | None = None
    ) -> None:
        """``ledger`` and ``faults`` are those of earlier drivers of the run."""
        self._most = most
        self._read = ledger.read if ledger is not None else 0
        self._faults = faults or Faults()
        self._on_error: OnError | None = None  # as it was asked for since
        self._open: dict[int, tuple[int, Faults]] = {}  # by shard: rows read so far, and how many failed

    def on_message(self, message: Any, now: float) -> None:
        """Count the rows of an open shard that failed so far."""
        if isinstance(message, RunAsked):
            self._most = message.max_errors or self._most
            self._on_error = message.on_error or self._on_error
        elif isinstance(message, RowsRead) and message.faults.counts:
            self._open[message.shard] = message.rows, message.faults
            self._check()

    def before_submit(self, task: Task) -> Task:
        """Say what becomes of rows that fail, if that is not as it was."""
        return msgspec.structs.replace(task, on_error=self._on_error) if self._on_error else task

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Count the rows of an attempt before it is committed."""
        self.count(outcome)
        return outcome

    def count(self, outcome: Outcome) -> None:
        """Count the rows of an attempt that has ended."""
        self._open.pop(outcome.shard, None)
        if isinstance(outcome, Done):
            self._read += outcome.ledger.read
            self._faults += outcome.faults
            self._check()

    def _check(self) -> None:
        if self._most is None:
            return
        read = self._read + sum(rows for rows, _ in self._open.values())
        faults = sum((each for _, each in self._open.values()), self._faults)
        share = 0 < self._most < 1
        most = self._most * read if share else self._most
        if faults.total > most and not (share and read < SAMPLE):
            raise TooManyErrors(
                f"{faults.total:,} of the {read:,} rows read so far failed, more than max_errors={self._most:g} "
                f"allows: {format_faults(faults)}. Finished work is kept: fix the cause, or allow more and run again."
            )


class LedgerCheck(Policy):
    """Compares the ledger of each finished attempt with what ``accounts`` expects of its shard."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Turn an outcome with a wrong ledger into an error that ends the run."""
        if not isinstance(outcome, Done) or not view.is_current(outcome):
            return outcome
        shard = view.shard(outcome.shard)
        if outcome.rest is not None:
            shard = split_off(shard, outcome.rest, view.shards)[0]
        wrong = self._accounts.check(shard, outcome)
        return outcome if wrong is None else Failed(outcome.shard, outcome.attempt, wrong)


def format_faults(faults: Faults) -> str:
    """Return how many rows failed with which error, the most frequent first."""
    counts = sorted(faults.counts, key=lambda each: -each[1])
    parts = [
        f"{count:,} in {fault.step} with {fault.kind}"
        + (f', such as "{fault.message}"' if fault.message else "")
        for fault, count in counts[:KINDS]
    ]
    rest = sum(count for _, count in counts[KINDS:])
    return "; ".join([*parts, f"{rest:,} others"] if rest else parts)
