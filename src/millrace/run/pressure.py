"""When memory gets short: who waits, and who has to go. Pure: no I/O, no thread, no clock.

All that a run takes is the private memory of its processes, and the blocks in flight. Above 85 % of the limit nothing
is begun ahead of its time, and the biggest worker gets smaller batches, as it does again above 90 %. Above 95 % it is
ended, as the kernel would do a little later, and with less choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

PAUSE = 0.85
SQUEEZE = (0.85, 0.9)  # each once for a worker
STOP = 0.95
REST = 0.5  # of the limit; once a shard was too big, a worker that takes as much is not used again
TRIES = 5  # workers ended one after another with nothing done between


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes at one moment: of the driver, of blocks, and of each stage's workers, by number."""

    driver: int
    blocks: int
    stages: Sequence[Mapping[int, int]]

    @property
    def total(self) -> int:
        """All of it."""
        return self.driver + self.blocks + sum(sum(stage.values()) for stage in self.stages)


@dataclass(frozen=True, slots=True)
class End:
    """A worker has to go.

    ``alone``: it would be too much without the others of its pool. ``fresh``: it has completed nothing since it
    started. ``replaced``: another comes in its place. ``idle``: it has nothing to do.
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


class Pressure:
    """Judges samples against ``limit``; remembers who was told to end, and who has done something."""

    def __init__(self, limit: int, *, tight: bool = False) -> None:
        """``tight``: a shard is known not to fit."""
        self.limit = limit
        self.paused = False
        self.tight = tight
        self.hopeless = ""  # why there is no going on, and what to do
        self.total = 0
        self._ending: set[int] = set()
        self._worked: set[int] = set()
        self._fruitless = 0
        self._squeezed: Counter[int] = Counter()
        self.squeeze: tuple[int, int] | None = None  # stage and worker that should have smaller batches now

    def worked(self, worker: int) -> None:
        """A worker has completed something."""
        self._worked.add(worker)
        self._fruitless = 0

    def progress(self) -> None:
        """Something was found that makes the next try another one."""
        self._fruitless = 0

    def live(self, workers: Mapping[int, int]) -> dict[int, int]:
        """Leave out those who were told to end."""
        return {worker: value for worker, value in workers.items() if worker not in self._ending}

    def judge(self, sample: Sample, idle: Collection[int] = ()) -> End | None:
        """Return who has to go now, if anybody; ``idle`` workers have nothing to do at the moment."""
        self._forget(sample)
        sample = Sample(sample.driver, sample.blocks, [self.live(stage) for stage in sample.stages])
        self.total = sample.total
        self.paused = self.total > PAUSE * self.limit
        self.squeeze = None
        if not any(sample.stages):
            return None
        if sample.driver > STOP * self.limit:
            self.hopeless = (
                f"this process alone takes {size(sample.driver)}. {told(sample, self.limit)}. Keep less in it, or "
                "raise memory_limit="
            )
            return None
        if self.total > STOP * self.limit:
            return self._too_much(sample)
        if self.tight and self.total > REST * self.limit:
            return self._spent(sample, idle)
        if not self.tight:  # then it is not the batches
            self.squeeze = self._squeeze(sample)
        return None

    def _squeeze(self, sample: Sample) -> tuple[int, int] | None:
        stage, worker = _biggest(sample)
        level = self._squeezed[worker]
        if level == len(SQUEEZE) or self.total <= SQUEEZE[level] * self.limit:
            return None
        self._squeezed[worker] += 1
        return stage, worker

    def _spent(self, sample: Sample, idle: Collection[int]) -> End | None:
        """Have a worker replaced that takes much, as long as nothing is lost by that."""
        share = REST * self.limit / sum(map(len, sample.stages))
        spent = [worker for worker in idle if worker in self._worked]
        spent = [worker for stage in sample.stages for worker in spent if stage.get(worker, 0) > share]
        if not spent:
            return None
        stage, worker = _biggest(sample, spent)
        return replace(self._end(sample, stage, worker, replaced=True), idle=True)

    def _forget(self, sample: Sample) -> None:
        there = {worker for stage in sample.stages for worker in stage}
        self._ending &= there
        self._worked &= there

    def _too_much(self, sample: Sample) -> End | None:
        self._fruitless += 1
        if self._fruitless > TRIES + sum(map(len, sample.stages)):
            ends = self._fruitless - 1
            self.hopeless = (
                f"{ends} workers had to be ended with nothing done between. {told(sample, self.limit)}. "
                "Let fewer workers share it (workers=, concurrency=), give them smaller batches (batch_size=), or "
                "raise memory_limit="
            )
            return None
        stage, worker = _biggest(sample)
        return self._end(sample, stage, worker, replaced=len(sample.stages[stage]) == 1)

    def _end(self, sample: Sample, stage: int, worker: int, *, replaced: bool) -> End:
        pool = sample.stages[stage]
        others = sum(pool.values()) - pool[worker]
        self._ending.add(worker)
        return End(
            stage,
            worker,
            f"it took {size(pool[worker])}. {told(sample, self.limit)}",
            self.total - others > STOP * self.limit,
            worker not in self._worked,
            replaced,
            pool[worker],
            self.limit,
        )


def _biggest(sample: Sample, among: Collection[int] | None = None) -> tuple[int, int]:
    ranked = [
        (taken, stage, worker)
        for stage, pool in enumerate(sample.stages)
        for worker, taken in pool.items()
        if among is None or worker in among
    ]
    _, stage, worker = max(ranked)
    return stage, worker


def told(sample: Sample, limit: int) -> str:
    """Say what takes how much.

    >>> told(Sample(100 << 20, 0, [{1: 300 << 20, 2: 200 << 20}]), 1 << 30)
    'The run took 600 MiB (driver 100 MiB, 2 workers 500 MiB) of a memory_limit of 1.00 GiB'
    """
    workers = [taken for stage in sample.stages for taken in stage.values()]
    parts = [
        f"driver {size(sample.driver)}",
        f"{len(workers)} worker{'' if len(workers) == 1 else 's'} {size(sum(workers))}",
    ]
    parts += [f"blocks {size(sample.blocks)}"] if sample.blocks else []
    return f"The run took {size(sample.total)} ({', '.join(parts)}) of a memory_limit of {size(limit)}"


def size(number: int) -> str:
    """Say bytes in words, as exactly as a decision about memory needs."""
    return f"{number / 2**30:.2f} GiB" if number >= 1 << 30 else f"{number / 2**20:.0f} MiB"
