"""What follows when workers die, stall or are interrupted, and what they found out."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.core.events import BatchShrunk, RunAsked
from headrace.core.terminal import warn_of_pickling
from headrace.core.waiting import backoff
from headrace.core.work import (
    AttemptLost,
    EndEarly,
    ErrorReport,
    ObjectsPickled,
    Outcome,
    RunInterrupted,
    Task,
)
from headrace.driver.policy import (
    NEVER,
    Action,
    Decision,
    DumpStacks,
    Emit,
    EndRun,
    Policy,
    Release,
    Restrict,
    RunView,
    StopRun,
    Tell,
    Verdict,
    WorkerDeath,
)
from headrace.driver.ports import Committer
from headrace.errors import NeverReady, NodeLost

FIRST = 0.1  # seconds; doubles with each death over the same shard
LONGEST = 5.0


class ExternalDeaths(Policy):
    """Charges no shard with the death of a worker that could not work yet, or whose machine is gone."""

    def on_death(self, death: WorkerDeath) -> Verdict | None:
        """Decide on deaths from outside; leave the others to the next policy."""
        return Verdict(charged=False) if isinstance(death.error, (NeverReady, NodeLost)) else None


class RetryBackoff(Policy):
    """Holds lost attempts back for a while: what a worker died of may pass, such as a machine short of memory."""

    def __init__(self) -> None:
        self._deaths: Counter[int] = Counter()  # by shard
        self._held: list[tuple[float, int, AttemptLost]] = []  # a heap of the times when each pause ends
        self._order = itertools.count()

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Hold an attempt back whose shard is charged with its worker's death."""
        if not isinstance(outcome, AttemptLost) or not outcome.charged:
            return outcome
        self._deaths[outcome.shard] += 1
        pause = backoff(self._deaths[outcome.shard], FIRST, LONGEST, spread=0.0)
        heapq.heappush(self._held, (view.now + pause, next(self._order), outcome))
        return None

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Go on with the attempts whose pause is over."""
        while self._held and self._held[0][0] <= view.now:
            yield Release(heapq.heappop(self._held)[2])

    def next_wakeup(self, now: float) -> float:
        """Return when the next pause ends."""
        return self._held[0][0] if self._held else NEVER


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
        if view.finished:
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
        return calls > view.attempts_waiting


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
            at_work = view.open_workers(last)
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
            for worker, attempt in sorted(view.at_work().items()) if self._waits else ():
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
