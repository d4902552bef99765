"""What the record keeps of frequent events: sums over some time, and samples. They are folded as events are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated

import msgspec

from headrace.core.answered import Answered, both
from headrace.core.events import ShardCommitted, Worked

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Stage = Annotated[int, msgspec.Meta(ge=0, lt=1000)]


TIMES = ("read", "decode", "steps", "metrics", "write", "wait")
"""What is measured inside a call."""


class WorkSum(msgspec.Struct, rename={"began": "from", "ended": "to"}):
    """The calls of one worker of a stage between two times, in seconds since 1970.

    ``seconds``: the time in these calls; ``lost``: of that, in calls whose result was not used. ``each`` has the
    seconds of each step, ``metrics`` those of metrics; both are parts of ``steps``. ``shard`` and ``attempt`` are -1
    unless it is a single call.
    """

    stage: _Stage
    worker: _Count
    began: _Time
    ended: _Time
    seconds: _Seconds
    calls: _Count = 1
    outcomes: dict[str, _Count] = {}
    rows: _Count = 0
    read: _Seconds = 0.0
    decode: _Seconds = 0.0
    steps: _Seconds = 0.0
    metrics: _Seconds = 0.0
    write: _Seconds = 0.0
    wait: _Seconds = 0.0
    lost: _Seconds = 0.0
    each: list[_Seconds] = []
    shard: int = -1
    attempt: int = -1

    @classmethod
    def of(cls, event: Worked, at: float, ready: float) -> WorkSum:
        """Return a call that ended at ``at``; its worker was not ready before ``ready``."""
        began = min(at, max(at - event.seconds, ready))
        times = {**msgspec.structs.asdict(event.timings), "each": list(event.timings.each)}
        lost = at - began if event.outcome in ("lost", "failed") else 0.0
        return cls(
            event.stage, event.worker, began, at, at - began, 1, {event.outcome: 1}, event.rows,
            **times, lost=lost, shard=event.shard, attempt=event.attempt,
        )  # fmt: skip

    def add(self, later: WorkSum) -> None:
        """Include later calls of the same worker."""
        self.ended = later.ended
        for name in ("seconds", "calls", "rows", *TIMES, "lost"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.each = added(self.each, later.each)
        for outcome, calls in later.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + calls
        self.shard = self.attempt = -1

    @property
    def busy(self) -> float:
        """The share of the time from ``began`` to ``ended`` in which the worker was in a call and did not wait."""
        waiting = min(1.0, self.wait / max(self.seconds, 1e-9))
        return min(1.0, self.seconds / max(self.ended - self.began, 1e-9)) * (1.0 - waiting)


def added(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """Add two lists of numbers, one by one.

    >>> added([1.0], [1.0, 2.0])
    [2.0, 2.0]
    """
    return [a + b for a, b in zip_longest(some, others, fillvalue=0.0)]


class CommitSum(msgspec.Struct):
    """Shards that were committed, and their rows and bytes. ``shard`` and ``attempt`` are -1 unless it is one."""

    shards: _Count
    read: _Count
    written: _Count = 0
    rejected: _Count = 0
    nulled: _Count = 0
    bytes: _Count = 0
    answered: Answered | None = None
    shard: int = -1
    attempt: int = -1

    @classmethod
    def of(cls, event: ShardCommitted) -> CommitSum:
        """Return one committed shard."""
        rows = event.ledger
        counts = rows.read, rows.written, rows.rejected, rows.nulled
        return cls(1, *counts, event.bytes, rows.answered, event.shard, event.attempt)

    def add(self, later: CommitSum) -> None:
        """Include shards that were committed later."""
        for name in ("shards", "read", "written", "rejected", "nulled", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.answered = both(self.answered, later.answered)
        self.shard = self.attempt = -1


class UnderWay(msgspec.Struct, frozen=True, array_like=True):
    """A shard that a worker is at: by the time ``at`` it had read ``rows`` of its rows; -1 if these are not known."""

    worker: _Count
    rows: _Count
    of: int
    at: _Time


class ProgressSample(msgspec.Struct, frozen=True):
    """How far a run was at one moment: rows read, shards committed and planned, rows that failed.

    Rows read and failed include those of shards that are not committed yet. ``working``: the workers of the last
    stage that are in the midst of one. In a run of one stage, ``worked`` has the seconds that workers have worked on
    these rows, added up, ``idle`` how many of them seem to have nothing to do, and ``last`` the shards under way,
    once few are left.
    """

    rows: _Count
    shards: _Count
    planned: _Count = 0
    failed: _Count = 0
    working: tuple[_Count, ...] = ()
    worked: _Seconds = 0.0
    idle: _Count = 0
    last: tuple[UnderWay, ...] = ()


class Unlisted(msgspec.Struct, frozen=True):
    """So many more events of a kind, which have no lines of their own in the record."""

    of: str
    count: _Count
