"""A committer for runs that write nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.core.metric_states import States, merge
from headrace.core.ports import Accumulator
from headrace.core.work import CommitRecord, Faults, Ledger, Shard, Timings


class InMemoryCommitter:
    """Adds up ledgers, and merges the states of ``metrics`` in the order of shards; nothing is durable."""

    pending = False

    def __init__(self, metrics: Sequence[tuple[str, Accumulator]] = ()) -> None:
        self._metrics = metrics
        self._totals = [metric.empty() for _, metric in metrics]
        self._unmerged: dict[int, States] = {}  # by shard, until all shards before it are merged
        self._next = 0
        self.ledger = Ledger()
        self.timings = Timings()
        self.faults = Faults()
        self.ceilings: dict[str, int] = {}
        self.on_committed: Callable[[CommitRecord], None] = _ignored

    def settle(self, schema: bytes) -> None:
        """There is nothing to make durable."""

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        """There is nothing to make durable."""

    def lower(self, step: str, rows: int) -> None:
        """Record a lower ceiling."""
        self.ceilings[step] = rows

    def accept(self, record: CommitRecord) -> None:
        """Add a record's counts."""
        self.ledger += record.ledger
        self.timings += record.timings
        self.faults += record.faults
        if self._metrics:
            self._unmerged[record.shard] = record.states
            while self._next in self._unmerged:
                self._merge(self._next)
                self._next += 1
        self.on_committed(record)

    def _merge(self, shard: int) -> None:
        merge(self._totals, self._unmerged.pop(shard))

    def totals(self) -> list[Accumulator]:
        """Return the metrics of all shards, once all are committed."""
        for shard in sorted(self._unmerged):
            self._merge(shard)
        return self._totals

    def commit_accepted(self, *, wait: bool = True) -> None:
        """There is nothing to make durable."""


def _ignored(record: CommitRecord) -> None:
    """Nobody watches."""
