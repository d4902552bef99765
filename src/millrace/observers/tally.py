"""What the events of a run add up to: rows, speed, time left. No stream, no clock."""

from __future__ import annotations

from collections import deque

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

_WINDOW = 30.0  # seconds over which speed is measured: long enough to be calm, short enough to follow
_SAMPLES = 1.0  # seconds between two samples


class Tally:
    """Told events and times, asked for numbers. A resumed run starts at what was done before."""

    def __init__(self, start: RunStarted, now: float) -> None:
        self.start = start
        self.shards = start.shards_done
        self.all_shards = start.shards
        self.bytes = 0
        self.retries = 0
        self.failed = 0  # rows in committed shards that failed
        self._failing: dict[int, int] = {}  # by shard under way
        self._committed = start.rows_done
        self._under_way: dict[int, tuple[int, int]] = {}  # worker → (shard, rows read in it)
        self._samples: deque[tuple[float, int, int]] = deque([(now, self.rows, self.shards)])

    def add(self, event: Event) -> None:
        """Take one more event into account."""
        if isinstance(event, RowsRead):
            self._under_way[event.worker] = (event.shard, event.rows)
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
            self._under_way.pop(event.worker, None)

    @property
    def rows(self) -> int:
        """Rows read, those of shards under way among them."""
        return self._committed + sum(rows for _, rows in self._under_way.values())

    @property
    def failing(self) -> int:
        """Rows that failed, those of shards under way among them."""
        return self.failed + sum(self._failing.values())

    @property
    def done(self) -> int:
        """How much is done, in the unit of ``total``."""
        return self.rows if self.start.rows >= 0 else self.shards

    @property
    def total(self) -> int:
        """Rows if their number is known, else shards."""
        return self.start.rows if self.start.rows >= 0 else self.all_shards

    def look(self, now: float) -> tuple[float, float | None]:
        """Return rows per second of late, and the seconds left (None while nobody can tell)."""
        if now - self._samples[-1][0] >= _SAMPLES:
            self._samples.append((now, self.rows, self.shards))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW:
            self._samples.popleft()
        then, rows, shards = self._samples[0]
        elapsed = now - then
        if elapsed <= 0:
            return 0.0, None
        speed = max(0.0, (self.rows - rows) / elapsed)
        pace = speed if self.start.rows >= 0 else (self.shards - shards) / elapsed
        left = max(0, self.total - self.done)
        return speed, left / pace if pace > 0 else None

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
        self._under_way = {worker: at for worker, at in self._under_way.items() if at[0] != shard}
        self._failing.pop(shard, None)
