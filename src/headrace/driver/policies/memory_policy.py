"""What to do when memory gets short: begin less, shrink batches, end a worker.

A run uses the private memory of its processes, and the blocks in flight. Above 85 % of the limit nothing is begun
ahead, and the biggest worker gets smaller batches, as it does again above 90 %. Above 95 % it is ended; the kernel
would end some process a little later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from headrace.core.human import size

PAUSE = 0.85  # shares of the limit
SHRINK = (0.85, 0.9)  # each once for a worker
END = 0.95
REPLACE = 0.5  # once a shard did not fit, workers that use this much together are replaced when idle
TRIES = 5  # workers ended one after another with nothing completed between


class MemorySample(msgspec.Struct, frozen=True):
    """Bytes at one moment: of the driver, of blocks, and of each stage's workers, by number."""

    driver: int
    blocks: int
    stages: Sequence[Mapping[int, int]]

    @property
    def total(self) -> int:
        """The bytes of all of them."""
        return self.driver + self.blocks + sum(sum(stage.values()) for stage in self.stages)


class Retirement(msgspec.Struct, frozen=True):
    """A worker has to end.

    ``alone``: memory would be short even without the other workers of its pool. ``fresh``: it has completed nothing
    since it started. ``replaced``: another one starts in its place. ``taken``: the bytes that it used. ``idle``: it
    has nothing to do.
    """

    stage: int
    worker: int
    reason: str
    alone: bool
    fresh: bool
    replaced: bool
    taken: int
    limit: int
    idle: bool = False


class MemoryPolicy:
    """Judges samples against ``limit``, in bytes.

    After ``judge``, ``paused`` says that nothing is to be begun ahead, ``shrink`` which stage and worker should get
    smaller batches, and ``hopeless`` why the run cannot go on. ``shard_too_big``: a shard is known not to fit;
    set by the caller. ``ending`` are the workers that were ended and are still there.
    """

    def __init__(self, limit: int, *, shard_too_big: bool = False) -> None:
        self.limit = limit
        self.paused = False
        self.shard_too_big = shard_too_big
        self.hopeless = ""
        self.total = 0
        self.ending: set[int] = set()
        self._worked: set[int] = set()
        self._in_vain = 0  # workers ended since something was completed
        self._shrunk: Counter[int] = Counter()  # by worker: how often its batches were shrunk
        self.shrink: tuple[int, int] | None = None

    def worked(self, worker: int) -> None:
        """A worker has completed something."""
        self._worked.add(worker)
        self._in_vain = 0

    def progress(self) -> None:
        """The next try will be a different one."""
        self._in_vain = 0

    def _without_ending(self, workers: Mapping[int, int]) -> dict[int, int]:
        return {worker: value for worker, value in workers.items() if worker not in self.ending}

    def judge(self, sample: MemorySample, idle: Collection[int] = ()) -> Retirement | None:
        """Return the worker that has to end now, if any; ``idle`` workers have nothing to do at the moment."""
        self._forget_dead(sample)
        sample = MemorySample(
            sample.driver, sample.blocks, [self._without_ending(stage) for stage in sample.stages]
        )
        self.total = sample.total
        self.paused = self.total > PAUSE * self.limit
        self.shrink = None
        if not any(sample.stages):
            return None
        if sample.driver > END * self.limit:
            self.hopeless = (
                f"this process alone takes {size(sample.driver, digits=2)}. {format_memory(sample, self.limit)}. "
                "Keep less in it, or raise memory_limit="
            )
            return None
        if self.total > END * self.limit:
            return self._end_biggest(sample)
        if self.shard_too_big and self.total > REPLACE * self.limit:
            return self._replace_idle(sample, idle)
        if not self.shard_too_big:  # else a single row may be too big, and smaller batches do not help
            self.shrink = self._choose_to_shrink(sample)
        return None

    def _choose_to_shrink(self, sample: MemorySample) -> tuple[int, int] | None:
        stage, worker = _biggest(sample)
        level = self._shrunk[worker]
        if level == len(SHRINK) or self.total <= SHRINK[level] * self.limit:
            return None
        self._shrunk[worker] += 1
        return stage, worker

    def _replace_idle(self, sample: MemorySample, idle: Collection[int]) -> Retirement | None:
        """Return an idle worker that uses much: replacing it loses nothing."""
        share = REPLACE * self.limit / sum(map(len, sample.stages))
        used = [worker for worker in idle if worker in self._worked]
        used = [worker for stage in sample.stages for worker in used if stage.get(worker, 0) > share]
        if not used:
            return None
        stage, worker = _biggest(sample, used)
        return msgspec.structs.replace(self._retirement(sample, stage, worker, replaced=True), idle=True)

    def _forget_dead(self, sample: MemorySample) -> None:
        present = {worker for stage in sample.stages for worker in stage}
        self.ending &= present
        self._worked &= present

    def _end_biggest(self, sample: MemorySample) -> Retirement | None:
        self._in_vain += 1
        if self._in_vain > TRIES + sum(map(len, sample.stages)):
            ended = self._in_vain - 1
            self.hopeless = (
                f"{ended} workers had to be ended, and no work was finished in between. "
                f"{format_memory(sample, self.limit)}. Use fewer workers (workers=, concurrency=), use smaller "
                "batches (batch_size=), or raise memory_limit="
            )
            return None
        stage, worker = _biggest(sample)
        return self._retirement(sample, stage, worker, replaced=len(sample.stages[stage]) == 1)

    def _retirement(self, sample: MemorySample, stage: int, worker: int, *, replaced: bool) -> Retirement:
        pool = sample.stages[stage]
        others = sum(pool.values()) - pool[worker]
        self.ending.add(worker)
        return Retirement(
            stage,
            worker,
            f"it took {size(pool[worker], digits=2)}. {format_memory(sample, self.limit)}",
            self.total - others > END * self.limit,
            worker not in self._worked,
            replaced,
            pool[worker],
            self.limit,
        )


def _biggest(sample: MemorySample, among: Collection[int] | None = None) -> tuple[int, int]:
    ranked = [
        (taken, stage, worker)
        for stage, pool in enumerate(sample.stages)
        for worker, taken in pool.items()
        if among is None or worker in among
    ]
    _, stage, worker = max(ranked)
    return stage, worker


def format_memory(sample: MemorySample, limit: int) -> str:
    """Return what uses how much memory.

    >>> format_memory(MemorySample(100 << 20, 0, [{1: 300 << 20, 2: 200 << 20}]), 1 << 30)
    'The run took 600 MiB (driver 100 MiB, 2 workers 500 MiB) of a memory_limit of 1 GiB'
    """
    workers = [taken for stage in sample.stages for taken in stage.values()]
    parts = [
        f"driver {size(sample.driver, digits=2)}",
        f"{len(workers)} worker{'' if len(workers) == 1 else 's'} {size(sum(workers), digits=2)}",
    ]
    parts += [f"blocks {size(sample.blocks, digits=2)}"] if sample.blocks else []
    total = f"{size(sample.total, digits=2)} ({', '.join(parts)})"
    return f"The run took {total} of a memory_limit of {size(limit, digits=2)}"
