"""Memory: what workers and blocks may take, and what is done when it runs short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.core.events import MemoryTaken, RowsRead, Worked, WorkerRetired
from headrace.core.human import size
from headrace.core.messages import ShrinkBatches
from headrace.core.work import AttemptLost, ErrorReport, Failed, Outcome
from headrace.driver.policies.poison_rows import PoisonRowDetector
from headrace.driver.policy import (
    Action,
    Decision,
    DivideShard,
    Emit,
    EndRun,
    EndWorker,
    Policy,
    Restrict,
    RunView,
    Tell,
    Verdict,
    WorkerDeath,
)
from headrace.driver.shards import does_not_fit, parts_of
from headrace.errors import NeverReady

INTERVAL = 0.2  # seconds between two measurements
INTERVAL_WHEN_SHORT = 0.05  # where more than half of the limit is used


class Oversized(msgspec.Struct, frozen=True):
    """A shard that does not fit into memory; its worker had read ``rows`` of its rows, as far as is known."""

    shard: int
    rows: int
    reason: str


class MemoryGuard(Policy):
    """Measures the memory of a run, and carries out what ``memory`` decides; on each machine for itself.

    ``driver_memory`` returns the private memory of this process, in bytes; ``machine`` the one that a worker is on,
    "" for this. A shard of one row that does not fit is left to ``poison_rows``.
    """

    def __init__(
        self,
        memory: MemoryPolicy,
        driver_memory: Callable[[], int] = lambda: 0,
        poison_rows: PoisonRowDetector | None = None,
        machine: Callable[[int], str] = lambda worker: "",
    ) -> None:
        self._memory = memory
        self._machine = machine
        self._machines = {"": memory}
        self._driver_memory = driver_memory
        self._poison_rows = poison_rows or PoisonRowDetector()
        self._due = 0.0
        self._retired: dict[int, Retirement] = {}  # by worker
        self._attributed: set[int] = set()  # of those, whose death was attributed to a shard
        self._progress: dict[int, tuple[int, int]] = {}  # by worker: its shard, and the rows read of it
        self._oversized: dict[int, Oversized] = {}  # by shard

    # ------------------------------------------------------------ measuring

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Measure, if it is time to; end a worker if memory is short."""
        too_big = self._memory.shard_too_big
        if view.now >= self._due or too_big:
            yield from self._measure(view)
        ending = {worker for memory in self._machines.values() for worker in memory.ending}
        paused = any(memory.paused for memory in self._machines.values())
        if ending or paused or too_big:
            yield Restrict(frozenset(ending), ahead=not (paused or too_big), needed_only=paused)

    def _measure(self, view: RunView) -> Iterable[Action]:
        stages = range(view.stages)
        workers = [view.memory(stage) for stage in stages]
        place = {worker: self._machine(worker) for stage in workers for worker in stage}
        idle: set[int] = set()
        if self._memory.shard_too_big:
            for stage in stages:
                idle |= {worker for worker, calls in view.loads(stage).items() if not calls}
            idle = idle.difference(*(view.scheduler.open_workers(stage) for stage in stages))
        elsewhere = {name for name in place.values() if name}
        driver, blocks = self._driver_memory(), view.scheduler.blocks.held
        taken = tuple(sum(stage.values()) for stage in workers)
        actions: list[Action] = []
        for name in [*self._machines, *sorted(elsewhere - self._machines.keys())]:
            here = [{each: size for each, size in stage.items() if place[each] == name} for stage in workers]
            sample = MemorySample(0, 0, here) if elsewhere else MemorySample(driver, blocks, here)
            memory = self._machines.setdefault(name, MemoryPolicy(self._memory.limit))
            memory.shard_too_big = self._memory.shard_too_big
            retirement = memory.judge(sample, idle)
            if memory.shrink is not None:
                yield Tell(*memory.shrink, ShrinkBatches())
            if memory.hopeless:
                actions.append(EndRun(_hopeless(memory.hopeless)))
            elif retirement is not None:
                self._retired[retirement.worker] = retirement
                actions += _end(retirement)
        yield Emit(MemoryTaken(driver, blocks, taken, self._memory.limit * max(1, len(elsewhere))))
        yield from actions
        self._due = view.now + self._interval

    @property
    def _interval(self) -> float:
        most = max(memory.total for memory in self._machines.values())
        return INTERVAL_WHEN_SHORT if most > self._memory.limit / 2 else INTERVAL

    def next_wakeup(self, now: float) -> float:
        """Return when the next measurement is due."""
        return now + self._interval

    def on_message(self, message: Any, now: float) -> None:
        """Note how far a worker is, and that it has completed something."""
        if isinstance(message, RowsRead):
            self._progress[message.worker] = message.shard, message.rows
        elif isinstance(message, Worked) and message.outcome == "done":
            for memory in self._machines.values():
                memory.worked(message.worker)

    # ------------------------------------------------------------ what follows from a worker that was ended

    def on_death(self, death: WorkerDeath) -> Verdict | None:
        """Decide on the workers that were ended here: no shard is charged, but one may turn out not to fit.

        The calls of a worker fail in order, so the first one was at work, if the worker reported nothing else.
        """
        retirement = self._retired.get(death.worker)
        if retirement is None:
            return None
        shard, rows = self._progress.get(death.worker, (death.shard, 0))
        conclusive = retirement.fresh and retirement.alone and shard == death.shard
        if conclusive and death.worker not in self._attributed:
            self._attributed.add(death.worker)
            if isinstance(death.error, NeverReady):
                return Verdict(error=_does_not_load(str(death.error)))
            rows = rows if death.rows is None else death.rows
            self._oversized[shard] = Oversized(shard, rows, retirement.reason)
        return Verdict(restart=death.shard in self._oversized)

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Divide a shard that did not fit, now that no attempt at it is under way."""
        if not isinstance(outcome, AttemptLost) or not view.scheduler.is_current(outcome):
            return outcome
        found = self._oversized.pop(outcome.shard, None)
        if found is None:
            return outcome
        for memory in self._machines.values():
            memory.progress()
        self._memory.shard_too_big = True
        shard = view.scheduler.shard_of(found.shard)
        if not view.scheduler.dividable:
            why = "In a plan with a limit, or one that is read in order, it is not divided."
            return Failed(outcome.shard, outcome.attempt, does_not_fit(shard, found.reason, why))
        parts = parts_of(shard, found.rows, view.scheduler.count, view.scheduler.family(found.shard))
        if len(parts) > 1:
            return DivideShard(parts)
        if self._poison_rows.skip_only_row(shard, "OutOfMemory", found.reason):
            return outcome
        error = does_not_fit(shard, found.reason, row=self._poison_rows.location(shard))
        return Failed(outcome.shard, outcome.attempt, error)


def _end(retirement: Retirement) -> Iterable[Action]:
    stage, worker, reason = retirement.stage, retirement.worker, retirement.reason
    yield EndWorker(worker, reason, stage, replaced=retirement.replaced, charged=False)
    yield Emit(
        WorkerRetired(
            stage, worker, retirement.taken, retirement.limit, retirement.replaced, retirement.idle, reason
        )
    )


def _hopeless(why: str) -> ErrorReport:
    return ErrorReport(
        "OutOfMemory",
        f"There is not enough memory: {why}. Finished work is kept.",
    )


def _does_not_load(reason: str) -> ErrorReport:
    return ErrorReport(
        "OutOfMemory",
        f"A worker alone does not fit into memory: {reason}. Use a smaller model or dtype, raise memory_limit=, or "
        "run on a machine with more. Finished work is kept.",
    )


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
        *([f"driver {size(sample.driver, digits=2)}"] if sample.driver else []),
        f"{len(workers)} worker{'' if len(workers) == 1 else 's'} {size(sum(workers), digits=2)}",
    ]
    parts += [f"blocks {size(sample.blocks, digits=2)}"] if sample.blocks else []
    total = f"{size(sample.total, digits=2)} ({', '.join(parts)})"
    run = "The run" if sample.driver else "On that machine the run"
    return f"{run} took {total} of a memory_limit of {size(limit, digits=2)}"
