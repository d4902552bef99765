"""What a run consists of: its drivers, its stages, open shards; and the sums and samples of these in the record."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated

import msgspec

from headrace.core.answered import Answered, both
from headrace.core.events import (
    RowsBegun,
    RowsRead,
    RunDescribed,
    RunFinished,
    RunStarted,
    ShardCommitted,
    Worked,
)
from headrace.core.work import Faults

BUSY = 0.7  # share of its time: the least of a stage that is the bottleneck
LONGEST = 1e9  # seconds: a longer time was not measured

_SILENT, _SILENCES = 10.0, 3.0  # seconds, and times what is usual: who is silent for longer has nothing to do
_AHEAD = 0.2  # by which that has to be more than any other stage's

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Stage = Annotated[int, msgspec.Meta(ge=0, lt=1000)]


TIMES = ("read", "decode", "steps", "metrics", "write", "wait", "cpu")
"""What is measured inside a call."""


class Driver(msgspec.Struct):
    """One process that drove the run, from ``began`` to ``ended`` in seconds since 1970.

    ``start``: the time that earlier drivers took, in seconds. ``rows_before`` and ``shards_before`` were committed
    before it. ``finished`` is None if it has not ended, or was killed.
    """

    began: float
    start: float = 0.0
    ended: float = 0.0
    described: RunDescribed | None = None
    started: RunStarted | None = None
    finished: RunFinished | None = None
    first_ready: float | None = None  # seconds from its start until its first worker was ready
    loading: float = 0.0  # seconds: the longest that a worker took to load models and construct classes
    making: float = 0.0  # seconds that its queries took, before there were workers

    @property
    def seconds(self) -> float:
        """How long it worked, as far as is known."""
        if self.finished is not None and 0 < self.finished.seconds < LONGEST:
            return self.finished.seconds
        return max(0.0, self.ended - self.began)

    @property
    def workers(self) -> list[int]:
        """How many workers each stage had at most."""
        return [max(1, stage.workers) for stage in self.described.stages] if self.described else []

    @property
    def error(self) -> str | None:
        """What it failed with; empty if it did not; None if it has not ended, or was killed."""
        return self.finished.error if self.finished is not None else None


class StageState(msgspec.Struct):
    """What the workers of one stage did, in seconds summed over all of them.

    ``starting`` and ``loading``: until each was ready, and of that for models and classes. ``seconds``: in calls, of
    which the next six were measured inside the workers; ``metrics`` is a part of ``steps``, and so is ``each`` of
    them. They may overlap, so their sum may be more. ``cpu``: of processors. ``lost``: in calls whose result is
    unused.
    """

    starting: float = 0.0
    loading: float = 0.0
    seconds: float = 0.0
    read: float = 0.0
    decode: float = 0.0
    steps: float = 0.0
    metrics: float = 0.0
    write: float = 0.0
    wait: float = 0.0
    cpu: float = 0.0
    lost: float = 0.0
    each: list[float] = msgspec.field(default_factory=list)
    rows: int = 0
    recent: deque[tuple[float, float, float]] = msgspec.field(default_factory=deque)  # from, to, busy seconds

    @property
    def work(self) -> float:
        """Seconds of anything but waiting."""
        return self.read + self.decode + self.steps + self.write


class OpenShards:
    """The shards that workers of the last stage are in the midst of, with the rows that were read and that failed.

    ``worked``: the seconds that all workers have worked until their last news, added up.

    >>> shards = OpenShards()
    >>> shards.begin(worker=1, at=90.0)
    >>> shards.put(RowsRead(worker=1, shard=7, rows=50), at=100.0)
    >>> shards.rows, shards.worked, shards.workers()
    (50, 10.0, (1,))
    """

    def __init__(self) -> None:
        self.rows = self.failed = 0
        self.worked = 0.0
        self._shards: dict[int, UnderWay] = {}
        self._waited: dict[int, float] = {}  # shard → seconds
        self._sized: dict[int, tuple[int, int]] = {}  # shard → rows and their bytes, where these are known
        self._failed: dict[int, int] = {}  # shard → rows, where there are any
        self._news: dict[int, float] = {}  # worker → when it was ready, or said something last
        self._silence = 0.0  # the longest between two news of a worker

    def begin(self, worker: int, at: float) -> None:
        """A worker is ready."""
        self._news[worker] = at

    def news(self, worker: int, at: float) -> None:
        """A worker has worked until now."""
        silence = max(0.0, at - self._news.get(worker, at))
        self.worked += silence
        self._silence = max(self._silence, silence)
        self._news[worker] = at

    def put(self, event: RowsRead, at: float) -> None:
        """Note how far a worker is in its shard."""
        self.forget(event.shard)
        self.news(event.worker, at)
        self._shards[event.shard] = UnderWay(event.worker, event.rows, event.of, at)
        self.rows += event.rows
        self._waited[event.shard] = event.waited
        if event.size:
            self._sized[event.shard] = event.rows, event.size
        if failed := event.faults.total:
            self._failed[event.shard] = failed
            self.failed += failed

    def forget(self, shard: int) -> None:
        """A shard is done, or begins anew."""
        if (known := self._shards.pop(shard, None)) is not None:
            self.rows -= known.rows
            self._sized.pop(shard, None)
            self._waited.pop(shard, None)
            self.failed = max(0, self.failed - self._failed.pop(shard, 0))

    def forget_worker(self, worker: int) -> None:
        """A worker is gone, and what it was at begins anew."""
        self._news.pop(worker, None)
        for shard in [shard for shard, known in self._shards.items() if known.worker == worker]:
            self.forget(shard)

    def sized(self) -> tuple[int, int]:
        """Return rows, and the bytes of the input that they are, of the shards of which both are known."""
        return sum(rows for rows, _ in self._sized.values()), sum(size for _, size in self._sized.values())

    @property
    def waited(self) -> float:
        """The seconds that workers waited for the stage before, in the shards that they are at."""
        return round(sum(self._waited.values()), 3)

    def workers(self) -> tuple[int, ...]:
        """Return the workers that are at a shard, in their order."""
        return tuple(sorted({known.worker for known in self._shards.values()}))

    def idle(self, now: float) -> int:
        """Return how many workers have been silent for so long that they seem to have nothing to do."""
        heard = now - max(_SILENT, _SILENCES * self._silence)
        return sum(at < heard for at in self._news.values())

    def each(self, left: int, now: float) -> tuple[UnderWay, ...]:
        """Return the shards, in the order of their workers; where more are ``left``, with those just begun."""
        found = sorted(self._shards.values(), key=lambda known: (known.worker, known.at))
        known = {each.worker for each in found}
        heard = now - max(_SILENT, _SILENCES * self._silence)
        begun = sorted(
            (at, worker) for worker, at in self._news.items() if worker not in known and at >= heard
        )
        return (*found, *(UnderWay(worker, 0, -1, at) for at, worker in begun[: max(0, left - len(found))]))


class BegunRows:
    """The rows of open shards that went through a stage before the last, by the tasks that made blocks of them.

    >>> begun = BegunRows()
    >>> begun.put(RowsBegun(stage=0, worker=1, shard=7, task=3, rows=50), at=100.0)
    >>> begun.put(RowsBegun(stage=0, worker=2, shard=7, task=4, rows=10), at=101.0)
    >>> begun.through(stage=0), begun.through(stage=1)
    (60, 0)
    """

    def __init__(self) -> None:
        self.news: dict[int, tuple[int, float]] = {}  # worker in a call → its stage, and when it got on last
        self._shards: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}  # by stage and task: rows, bytes

    def put(self, event: RowsBegun, at: float) -> None:
        """Note how far a task is."""
        self.news[event.worker] = event.stage, at
        self._shards.setdefault(event.shard, {})[event.stage, event.task] = event.rows, event.size

    def forget(self, shard: int) -> None:
        """A shard is done, or begins anew."""
        self._shards.pop(shard, None)

    def through(self, stage: int) -> int:
        """Return how many rows went through a stage."""
        return sum(rows for rows, _ in self._of(stage))

    def sized(self) -> tuple[int, int]:
        """Return rows of the first stage, and the bytes of the input that they are, where both are known."""
        found = [each for each in self._of(0) if each[1]]
        return sum(rows for rows, _ in found), sum(size for _, size in found)

    def _of(self, stage: int) -> list[tuple[int, int]]:
        return [done for tasks in self._shards.values() for (at, _), done in tasks.items() if at == stage]


def busy_share(seconds: float, wait: float, capacity: float) -> float:
    """Return the share of the time that workers had, in which they worked and did not wait.

    >>> busy_share(8.0, 2.0, 12.0)
    0.5
    """
    return min(1.0, max(0.0, seconds - wait) / capacity) if capacity > 0 else 0.0


def bottleneck(shares: Sequence[float]) -> int | None:
    """Return the stage that kept the others waiting, if one did, from the busy shares of all.

    >>> bottleneck([0.97, 0.4]), bottleneck([0.97, 0.9]), bottleneck([0.5, 0.1])
    (0, None, None)
    """
    if len(shares) < 2:
        return None
    busiest = max(range(len(shares)), key=shares.__getitem__)
    others = max(share for i, share in enumerate(shares) if i != busiest)
    return busiest if shares[busiest] >= BUSY and others <= shares[busiest] - _AHEAD else None


# ------------------------------------------------------------ what the record keeps of frequent events


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
    cpu: _Seconds = 0.0
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
    faults: Faults = Faults()

    @classmethod
    def of(cls, event: ShardCommitted) -> CommitSum:
        """Return one committed shard."""
        rows = event.ledger
        counts = rows.read, rows.written, rows.rejected, rows.nulled
        return cls(1, *counts, event.bytes, rows.answered, event.shard, event.attempt, event.faults)

    def add(self, later: CommitSum) -> None:
        """Include shards that were committed later."""
        for name in ("shards", "read", "written", "rejected", "nulled", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.answered = both(self.answered, later.answered)
        self.faults += later.faults
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
    once few are left. ``likely``: how many rows there are, by what was read of the input; 0 where that is known, or
    nothing tells. ``begun``: the rows that went through each stage before the last; ``at_work``: how long its
    workers have worked in calls that go on. ``waited``: the seconds that those ``working`` waited for them.
    """

    rows: _Count
    shards: _Count
    planned: _Count = 0
    failed: _Count = 0
    working: tuple[_Count, ...] = ()
    worked: _Seconds = 0.0
    idle: _Count = 0
    last: tuple[UnderWay, ...] = ()
    likely: _Count = 0
    begun: tuple[_Count, ...] = ()
    at_work: tuple[_Seconds, ...] = ()
    waited: _Seconds = 0.0


class Unlisted(msgspec.Struct, frozen=True):
    """So many more events of a kind, which have no lines of their own in the record."""

    of: str
    count: _Count
