"""What a run consists of: the processes that drove it, its stages with what their workers did, and open shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from headrace.core.events import RowsRead, RunDescribed, RunFinished, RunStarted
from headrace.observers.sums import UnderWay

BUSY = 0.7  # share of its time: the least of a stage that is the bottleneck
LONGEST = 1e9  # seconds: a longer time was not measured

_SILENT, _SILENCES = 10.0, 3.0  # seconds, and times what is usual: who is silent for longer has nothing to do
_AHEAD = 0.2  # by which that has to be more than any other stage's


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
    them. They may overlap, so their sum may be more. ``lost``: in calls whose result is unused.
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
        if failed := event.faults.total:
            self._failed[event.shard] = failed
            self.failed += failed

    def forget(self, shard: int) -> None:
        """A shard is done, or begins anew."""
        if (known := self._shards.pop(shard, None)) is not None:
            self.rows -= known.rows
            self.failed = max(0, self.failed - self._failed.pop(shard, 0))

    def forget_worker(self, worker: int) -> None:
        """A worker is gone, and what it was at begins anew."""
        self._news.pop(worker, None)
        for shard in [shard for shard, known in self._shards.items() if known.worker == worker]:
            self.forget(shard)

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
