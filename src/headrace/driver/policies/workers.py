"""Workers: how many each pool has, and what follows when all stall or the run is interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.core.asked import RunAsked
from headrace.core.events import BatchShrunk, PoolResized, WorkerRetired
from headrace.core.messages import EndEarly, RestLeft, RunInterrupted
from headrace.core.terminal import warn_of_pickling
from headrace.core.work import ErrorReport, ObjectsPickled, Task
from headrace.driver.policy import (
    NEVER,
    Action,
    DumpStacks,
    Emit,
    EndRun,
    Policy,
    ResizePool,
    Restrict,
    RunView,
    StopRun,
    Tell,
)
from headrace.driver.ports import Committer

DUMP = 1.0  # seconds for workers to print their stacks


class StallDetector(Policy):
    """Ends the run after ``timeout`` seconds without work and without messages.

    A worker that has a call works, however long that takes, unless it waits for a block. If no attempt is open and
    none can begin, the run ends at once. While nothing is to begin, silence is no sign of anything.
    """

    def __init__(self, timeout: float = 300.0) -> None:
        self._timeout = timeout
        self._messages = 0
        self._since = 0.0  # the silence when somebody was last at work, or a message came

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """End the run if nothing can happen any more."""
        if view.scheduler.finished:
            return
        if view.messages != self._messages:
            self._messages, self._since = view.messages, view.silence
        quiet = view.silence - self._since
        if view.nothing_begins:
            yield DumpStacks(0.0)
            yield EndRun(_stalled(quiet))
        elif quiet and (view.holds or self._is_working(view)):
            self._since = view.silence
        elif quiet >= self._timeout:
            yield DumpStacks(DUMP)
            yield EndRun(_stalled(quiet))

    def _is_working(self, view: RunView) -> bool:
        calls = sum(sum(view.loads(stage).values()) for stage in range(view.stages))
        return calls > view.scheduler.blocks.attempts_waiting


def _stalled(quiet: float) -> ErrorReport:
    return ErrorReport(
        "Stalled",
        f"Nothing has happened for {quiet:.0f} s, no worker is at work, and nothing more can begin. Above, on "
        "standard error, is what each worker's threads are doing. This is a bug in Headrace: please report it. "
        "Finished work is kept; run the same command again, and it goes on from there.",
    )


PATIENCE = 10.0  # seconds for the batches that are under way


class Interruption(Policy):
    """After an interrupt nothing begins, open attempts end early, and the run stops once they have.

    It stops after ``PATIENCE`` in any case: a batch may take for ever. If a pause is asked for, open attempts end
    early as well; if the end, they go on to theirs, and the run stops then.
    """

    def __init__(self, *, waits: bool) -> None:
        """``waits``: attempts can end early; if not, an interrupt stops the run at once."""
        self._waits = waits
        self._until = NEVER
        self._wanted = RunAsked()
        self._asked: set[tuple[int, int]] = set()  # attempts, or workers, that were told to end

    def on_message(self, message: Any, now: float) -> None:
        """Note an interrupt, and what is asked for."""
        if isinstance(message, RunInterrupted):
            self._until = min(self._until, now + (PATIENCE if self._waits else 0.0))
        elif isinstance(message, RunAsked):
            self._wanted = message

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Have the workers end what they are at."""
        last = view.stages - 1
        if self._until < NEVER:
            yield Restrict(begin=False)
            at_work = view.scheduler.open_workers(last)
            if not at_work or view.now >= self._until:
                yield StopRun()
            for worker in sorted(at_work):
                yield from self._end(last, worker)
        elif self._wanted.ends:
            yield Restrict(begin=False)
            if not any(view.loads(last).values()):  # those that have no call wait for what does not begin
                yield StopRun()
        elif self._wanted.paused:
            yield Restrict(begin=False)
            for worker, attempt in sorted(view.scheduler.at_work.items()) if self._waits else ():
                yield from self._end(last, worker, *attempt)
            if not self._wanted.held and not any(any(view.loads(i).values()) for i in range(view.stages)):
                yield Emit(msgspec.structs.replace(self._wanted, held=True))

    def _end(self, stage: int, worker: int, shard: int = -1, attempt: int = -1) -> Iterable[Action]:
        """Have an attempt end, or all of a worker; it is told once."""
        told = (shard, attempt) if shard >= 0 else (-1, worker)
        if told not in self._asked:
            self._asked.add(told)
            yield Tell(stage, worker, EndEarly(), shard, attempt)

    def next_wakeup(self, now: float) -> float:
        """Return when the run stops in any case."""
        return self._until


class BatchCeilings(Policy):
    """Collects the ceilings of batch sizes that workers found, and passes them to the workers of later tasks."""

    def __init__(self, committer: Committer) -> None:
        """``committer`` holds the ceilings, also those of earlier drivers of the run."""
        self._committer = committer

    def on_message(self, message: Any, now: float) -> None:
        """Record a lower ceiling."""
        if isinstance(message, BatchShrunk):
            known = self._committer.ceilings.get(message.step)
            if known is None or message.now < known:
                self._committer.lower(message.step, message.now)

    def before_submit(self, task: Task) -> Task:
        """Add the ceilings known so far."""
        return msgspec.structs.replace(task, ceilings=dict(self._committer.ceilings))


class PickleWarnings(Policy):
    """Warns of each column of Python objects that is pickled between processes."""

    def __init__(self) -> None:
        self._columns: set[str] = set()

    def on_message(self, message: Any, now: float) -> None:
        """Warn of a column of which the user was not told before."""
        if isinstance(message, ObjectsPickled) and message.column not in self._columns:
            self._columns.add(message.column)
            warn_of_pickling(message.column, message.kinds)


# ---------------------------------------------------------------- how many there are

GROW_AFTER = 0.5  # seconds in which all workers were busy and work was waiting
SHRINK_AFTER = 5.0  # seconds in which some worker had nothing to do


class Autoscaler:
    """Lets a pool grow while work waits for it, and shrink while workers are idle.

    A pool doubles at a time, since work that waits has to be done; it loses one worker at a time, since a worker may
    be idle for a moment only.

    >>> pool = Autoscaler(1, 8)
    >>> [pool.wanted({1: 2}, waiting=9, now=now) for now in (0.0, 0.4, 0.5)]
    [1, 1, 2]
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._size = least
        self._busy_since: float | None = None  # all workers are busy and work waits
        self._idle_since: float | None = None  # some worker has nothing to do
        self._certain = False  # what waits is worth another worker

    @property
    def size(self) -> int:
        """The number of workers that there should be now."""
        return self._size

    def remove_worker(self) -> None:
        """Lower the size by one worker; it does not grow beyond that again."""
        self._most = self._size = max(1, self._size - 1)
        self._least = min(self._least, self._most)

    def limit(self, most: int) -> None:
        """Have so many workers at most; and at least, where their number was fixed."""
        self._least = most if self._least == self._most else min(self._least, most)
        self._most = most
        self._size = min(max(self._size, self._least), most)

    def expect_work(self) -> None:
        """Grow at once if work waits: somebody has measured that each piece is worth another worker."""
        self._certain = True

    def wanted(self, loads: Mapping[int, int], *, waiting: int, now: float) -> int:
        """Return how many workers there should be; ``loads`` counts each one's calls, ``waiting`` tasks."""
        busy = bool(loads) and all(loads.values())
        certain, self._certain = self._certain, False
        if not (busy and waiting):
            self._busy_since = None
        elif self._busy_since is None and not certain:
            self._busy_since = now
        elif self._size < self._most and (
            self._busy_since is None or certain or now - self._busy_since >= GROW_AFTER
        ):
            self._size = min(self._most, self._size + (waiting if certain else min(self._size, waiting)))
            self._busy_since = now
        if busy or waiting:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= SHRINK_AFTER and self._size > self._least:
            self._size -= 1
            self._idle_since = now
        return self._size


class PoolScaling(Policy):
    """Lets the pools of stages grow and shrink; ``bounds`` has the least and most workers of each stage.

    The stages in ``sized`` get another number of workers when that is asked for. Workers that are too many get
    nothing more to do, and end once they have done what they are at.
    """

    def __init__(self, bounds: Sequence[tuple[int, int]], sized: Sequence[int] = ()) -> None:
        self._last = len(bounds) - 1
        self._sized = sized
        self._scalers = {
            stage: Autoscaler(least, most)
            for stage, (least, most) in enumerate(bounds)
            if least < most or stage in sized
        }
        self._sizes = {stage: scaler.size for stage, scaler in self._scalers.items()}  # of the pools
        self._shrinks: set[int] = set()  # stages in which there are more workers than were asked for

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Give nothing more to workers that are too many."""
        for stage in sorted(self._shrinks):
            size = self._scalers[stage].size
            if surplus := sorted(view.loads(stage))[size:]:
                yield Restrict(ending=frozenset(surplus))
                yield ResizePool(stage, size)
            else:
                self._shrinks.discard(stage)

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """Resize the pools that should have another size."""
        for stage, scaler in self._scalers.items():
            waiting = (
                1 if view.holds else view.scheduler.tasks_waiting(stage)
            )  # a pause is no reason to shrink
            size = scaler.wanted({} if view.holds else view.loads(stage), waiting=waiting, now=view.now)
            if size != self._sizes[stage]:
                self._sizes[stage] = size
                yield ResizePool(stage, size)
                yield Emit(PoolResized(stage, size))

    def on_message(self, message: Any, now: float) -> None:
        """Count a worker that was ended for its memory and is not replaced; note work that was left for another."""
        if isinstance(message, WorkerRetired) and not message.replaced and message.stage in self._scalers:
            self._scalers[message.stage].remove_worker()
            self._sizes[message.stage] = self._scalers[message.stage].size
        elif isinstance(message, RunAsked) and message.workers is not None:
            for stage in self._sized:
                self._scalers[stage].limit(message.workers)
                self._shrinks.add(stage)
        elif isinstance(message, RestLeft) and self._last in self._scalers:
            self._scalers[self._last].expect_work()
