"""Keeps a run within its memory: measures its processes, ends a worker before the kernel does, divides a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.core.events import MemoryTaken, RowsRead, Worked, WorkerRetired
from headrace.core.work import AttemptLost, ErrorReport, Failed, Outcome, ShrinkBatches
from headrace.driver.policies.memory_policy import MemoryPolicy, MemorySample, Retirement
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
    Tell,
    Verdict,
    WorkerDeath,
)
from headrace.driver.run_view import RunView
from headrace.driver.shard_division import does_not_fit, parts_of
from headrace.errors import NeverReady

INTERVAL = 0.2  # seconds between two measurements
INTERVAL_WHEN_SHORT = 0.05  # where more than half of the limit is used


class Oversized(msgspec.Struct, frozen=True):
    """A shard that does not fit into memory; its worker had read ``rows`` of its rows, as far as is known."""

    shard: int
    rows: int
    reason: str


class MemoryGuard(Policy):
    """Measures the memory of a run, and carries out what ``memory`` decides.

    ``driver_memory`` returns the private memory of this process, in bytes. A shard of one row that does not fit is
    left to ``poison_rows``.
    """

    def __init__(
        self,
        memory: MemoryPolicy,
        driver_memory: Callable[[], int] = lambda: 0,
        poison_rows: PoisonRowDetector | None = None,
    ) -> None:
        self._memory = memory
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
        memory = self._memory
        if view.now >= self._due or memory.shard_too_big:
            yield from self._measure(view)
        if memory.ending or memory.paused or memory.shard_too_big:
            yield Restrict(
                frozenset(memory.ending),
                ahead=not (memory.paused or memory.shard_too_big),
                needed_only=memory.paused,
            )

    def _measure(self, view: RunView) -> Iterable[Action]:
        memory, stages = self._memory, range(view.stages)
        workers = [view.memory(stage) for stage in stages]
        idle: set[int] = set()
        if memory.shard_too_big:
            for stage in stages:
                idle |= {worker for worker, calls in view.loads(stage).items() if not calls}
            idle = idle.difference(*(view.open_workers(stage) for stage in stages))
        sample = MemorySample(self._driver_memory(), view.block_bytes, workers)
        retirement = memory.judge(sample, idle)
        if memory.shrink is not None:
            yield Tell(*memory.shrink, ShrinkBatches())
        self._due = view.now + self._interval
        taken = tuple(sum(stage.values()) for stage in workers)
        yield Emit(MemoryTaken(sample.driver, sample.blocks, taken, memory.limit))
        if memory.hopeless:
            yield EndRun(_hopeless(memory.hopeless))
        elif retirement is not None:
            self._retired[retirement.worker] = retirement
            yield from _end(retirement)

    @property
    def _interval(self) -> float:
        return INTERVAL_WHEN_SHORT if self._memory.total > self._memory.limit / 2 else INTERVAL

    def next_wakeup(self, now: float) -> float:
        """Return when the next measurement is due."""
        return now + self._interval

    def on_message(self, message: Any, now: float) -> None:
        """Note how far a worker is, and that it has completed something."""
        if isinstance(message, RowsRead):
            self._progress[message.worker] = message.shard, message.rows
        elif isinstance(message, Worked) and message.outcome == "done":
            self._memory.worked(message.worker)

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
        if not isinstance(outcome, AttemptLost) or not view.is_current(outcome):
            return outcome
        found = self._oversized.pop(outcome.shard, None)
        if found is None:
            return outcome
        self._memory.progress()
        self._memory.shard_too_big = True
        shard = view.shard(found.shard)
        if not view.dividable:
            why = "A plan with a limit, or one that is read in order, has no shard divided."
            return Failed(outcome.shard, outcome.attempt, does_not_fit(shard, found.reason, why))
        parts = parts_of(shard, found.rows, view.shards, view.family(found.shard))
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
