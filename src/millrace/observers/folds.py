"""Sums of events that are frequent, each told in one line of a record."""

from __future__ import annotations

from collections import Counter
from typing import Any

from millrace.core.events import MemoryTaken, ShardCommitted, Worked
from millrace.core.work import Ledger, Timings
from millrace.observers.busy import began


class Span:
    """What one worker did: how often, from when to when, how long of that, with which outcomes."""

    def __init__(self) -> None:
        self._calls = 0
        self._began = self._ended = self._seconds = 0.0
        self._rows = 0
        self._lost = 0.0
        self._timings = Timings()
        self._outcomes: Counter[str] = Counter()
        self._shard = self._attempt = -1

    def add(self, event: Worked, now: float, ready: float) -> None:
        """Count a call that has ended now; before ``ready`` the worker was not up."""
        start = began(event, now, ready)
        if not self._calls:
            self._began, self._timings = start, event.timings
        else:
            self._timings += event.timings
        self._calls += 1
        self._ended = now
        self._seconds += now - start
        self._lost += now - start if event.outcome in ("lost", "failed") else 0.0
        self._rows += event.rows
        self._outcomes[event.outcome] += 1
        self._shard, self._attempt = event.shard, event.attempt

    def told(self) -> dict[str, Any]:
        """Return the fields of a line; ``shard`` is there if it was a single call."""
        timings = self._timings
        one = {"shard": self._shard, "attempt": self._attempt} if self._calls == 1 else {}
        return {
            **one,
            "from": round(self._began, 3),
            "to": round(self._ended, 3),
            "seconds": round(self._seconds, 4),
            "calls": self._calls,
            "outcomes": dict(self._outcomes),
            "rows": self._rows,
            "read": round(timings.read, 4),
            "steps": round(timings.steps, 4),
            "write": round(timings.write, 4),
            "wait": round(timings.wait, 4),
            "lost": round(self._lost, 4),
        }


class Commits:
    """Shards that were committed, and their rows in sum."""

    def __init__(self) -> None:
        self.shards = 0
        self._ledger = Ledger()
        self._bytes = 0
        self._shard = self._attempt = -1

    def add(self, event: ShardCommitted) -> None:
        """Count a shard."""
        self._ledger = self._ledger + event.ledger if self.shards else event.ledger
        self.shards += 1
        self._bytes += event.bytes
        self._shard, self._attempt = event.shard, event.attempt

    def told(self) -> dict[str, Any]:
        """Return the fields of a line; ``shard`` is there if it is a single one."""
        ledger = self._ledger
        one = {"shard": self._shard, "attempt": self._attempt} if self.shards == 1 else {}
        return {
            **one,
            "shards": self.shards,
            "read": ledger.read,
            "written": ledger.written,
            "rejected": ledger.rejected,
            "nulled": ledger.nulled,
            "bytes": self._bytes,
        }


class Memory:
    """The most memory that was taken at one moment."""

    def __init__(self) -> None:
        self.limit = 0
        self._most: MemoryTaken | None = None

    def add(self, event: MemoryTaken) -> None:
        """Look at one more moment."""
        self.limit = event.limit
        if self._most is None or _total(event) > _total(self._most):
            self._most = event

    def told(self) -> dict[str, Any]:
        """Return the fields of a line."""
        most = self._most
        assert most is not None
        return {"driver": most.driver, "blocks": most.blocks, "stages": most.stages, "limit": most.limit}


def _total(event: MemoryTaken) -> int:
    return event.driver + event.blocks + sum(event.stages)
