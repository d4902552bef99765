"""What the events of a run add up to: rows, speed, time left. No stream, no clock."""

from __future__ import annotations

from millrace.core.events import (
    Event,
    RowsRead,
    RunStarted,
    ShardCommitted,
    ShardDivided,
    ShardRetried,
    WorkerLost,
)
from millrace.observers.human import count, countdown, plural, size
from millrace.observers.pace import Pace


class Tally:
    """Told events and times, asked for numbers. A resumed run starts at what was done before.

    Rows and shares never go back: what is done again, after a worker was lost, counts once it is beyond what was.
    """

    def __init__(self, start: RunStarted, now: float) -> None:
        self.start = start
        self.shards = start.shards_done
        self.all_shards = start.shards
        self.bytes = start.bytes_done
        self.retries = 0
        self.failed = start.rejected_done + start.nulled_done  # rows in committed shards that failed
        self._failing: dict[int, int] = {}  # by shard under way
        self._committed = start.rows_done
        self._under_way: dict[int, tuple[int, int]] = {}  # shard → (worker, rows read in it)
        self._most = start.rows_done
        self._share = 0.0
        self._pace = Pace(now, rows=self.rows, shards=self.shards)

    def add(self, event: Event) -> None:
        """Take one more event into account."""
        if isinstance(event, RowsRead):
            self._under_way[event.shard] = event.worker, event.rows
            self._failing[event.shard] = event.faults.total
        elif isinstance(event, ShardCommitted):
            self.shards += 1
            self.bytes += event.bytes
            self._committed += event.ledger.read
            self.failed += event.ledger.rejected + event.ledger.nulled
            self._forget(event.shard)
        elif isinstance(event, ShardRetried):
            self.retries += 1
            self._forget(event.shard)
        elif isinstance(event, ShardDivided):
            self.all_shards += event.parts - 1
        elif isinstance(event, WorkerLost):
            for shard in [shard for shard, (worker, _) in self._under_way.items() if worker == event.worker]:
                self._forget(shard)

    @property
    def rows(self) -> int:
        """Rows read, those of shards under way among them."""
        self._most = max(self._most, self._committed + sum(rows for _, rows in self._under_way.values()))
        return self._most

    @property
    def failing(self) -> int:
        """Rows that failed, those of shards under way among them."""
        return self.failed + sum(self._failing.values())

    @property
    def share(self) -> float | None:
        """How much of the run is done, of one; None if there is nothing to do."""
        done, total = (self.rows, self.start.rows) if self._by_rows else (self.shards, self.all_shards)
        if total <= 0:
            return None
        self._share = max(self._share, min(1.0, done / total))
        return self._share

    @property
    def _by_rows(self) -> bool:
        return self.start.rows >= 0

    def look(self, now: float) -> tuple[float, float | None]:
        """Return rows per second of late, and the seconds left (None while nobody can tell)."""
        speed = self._pace.look(now, rows=self.rows, shards=self.shards)
        left = self.start.rows - self.rows if self._by_rows else self.all_shards - self.shards
        return speed, self._pace.left(left, by_rows=self._by_rows)

    def describe(self, now: float) -> str:
        """Return all numbers as one line.

        >>> tally = Tally(RunStarted("r", "out", 12, 3, 250_000, 1_000_000, 2), now=0.0)
        >>> tally.add(RowsRead(worker=0, shard=3, rows=250_000))
        >>> tally.describe(now=5.0)
        '500 k of 1 M rows, 50 k rows/s, 3/12 shards, 0 B, ETA 0:10'
        """
        speed, left = self.look(now)
        rows = count(self.rows) + (f" of {count(self.start.rows)} rows" if self.start.rows >= 0 else " rows")
        parts = [
            rows,
            f"{count(speed)} rows/s",
            f"{self.shards}/{self.all_shards} shards",
            size(self.bytes),
        ]
        failed = self.failing
        if failed:
            parts.append(f"{plural(failed, 'row')} failed")
        if self.retries:
            parts.append(plural(self.retries, "retry", "retries"))
        parts.append(f"ETA {'-:--' if left is None else countdown(left)}")
        return ", ".join(parts)

    def _forget(self, shard: int) -> None:
        self._under_way.pop(shard, None)
        self._failing.pop(shard, None)
