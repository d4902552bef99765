"""Calls to the pool of the last stage: an attempt is submitted here, and its answer becomes an outcome."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from headrace.core import failures
from headrace.core.engine_ports import Pool
from headrace.core.events import CallEnd, Event, ShardRetried, Worked, WorkerLost
from headrace.core.work import AttemptLost, Deferred, Done, Failed, Outcome, Task
from headrace.driver.busy_time import BusyTime
from headrace.driver.orders import Proceed
from headrace.driver.policy import Policies, WorkerDeath
from headrace.driver.ports import RunPorts
from headrace.driver.scheduler import Scheduler
from headrace.errors import WorkerDied


class AttemptAnswer(msgspec.Struct, frozen=True):
    """The answer to a call for an attempt; when the call was made, and when it was answered."""

    shard: int
    attempt: int
    future: Future[Any]
    called: float
    answered: float

    @property
    def worker(self) -> int:
        """The worker that was called; -1 if the pool does not say."""
        return getattr(self.future, "worker", -1)


class AttemptCalls:
    """Submits attempts to ``pool``, that of stage number ``stage``."""

    def __init__(
        self,
        pool: Pool,
        stage: int,
        scheduler: Scheduler,
        policies: Policies,
        ports: RunPorts,
        *,
        emit: Callable[[Event], None],
    ) -> None:
        self._pool = pool
        self._stage = stage
        self._scheduler = scheduler
        self._policies = policies
        self._ports = ports
        self._emit = emit
        self._busy = BusyTime()

    def begin(self, worker: int, task: Task) -> None:
        """Have a worker begin an attempt."""
        task = self._policies.before_submit(task)
        future = self._pool.submit("attempt", task, worker=worker)
        self._expect(future, task.shard.index, task.attempt)

    def proceed(self, order: Proceed) -> None:
        """Have a worker go on with an attempt that waits."""
        future = self._pool.submit("proceed", order.shard, order.attempt, order.schema, worker=order.worker)
        self._expect(future, order.shard, order.attempt)

    def _expect(self, future: Future[Any], shard: int, attempt: int) -> None:
        called, clock, put = self._ports.clock(), self._ports.clock, self._ports.inbox.put
        future.add_done_callback(lambda done: put(AttemptAnswer(shard, attempt, done, called, clock())))

    def received(self, answer: AttemptAnswer) -> Outcome:
        """Report a call that was answered to the observers, and return what became of the attempt."""
        self._report(answer)
        error = answer.future.exception()
        if error is None:
            return answer.future.result()  # type: ignore[no-any-return]
        if isinstance(error, WorkerDied):
            return self._after_death(answer, error)
        return Failed(answer.shard, answer.attempt, failures.of_a_call(error))

    def _report(self, answer: AttemptAnswer) -> None:
        """Report how long a worker was at an attempt, and how the call ended."""
        seconds = self._busy.seconds(self._stage, answer.worker, answer.called, answer.answered)
        worked = Worked(self._stage, answer.worker, answer.shard, answer.attempt, seconds, _end_of(answer))
        if worked.outcome == "done":
            done = answer.future.result()
            worked = msgspec.structs.replace(worked, rows=done.ledger.read, timings=done.timings)
        self._emit(worked)

    def _after_death(self, answer: AttemptAnswer, error: WorkerDied) -> Outcome:
        shard, attempt, worker, reason = answer.shard, answer.attempt, answer.worker, str(error)
        self._emit(WorkerLost(worker, reason))
        at_work = self._scheduler.shard_at_death(worker) == shard
        verdict = self._policies.on_death(WorkerDeath(error, worker, shard, at_work=at_work))
        if verdict.error is not None:
            return Failed(shard, attempt, verdict.error)
        self._emit(ShardRetried(shard, attempt + 1, reason))
        return AttemptLost(shard, attempt, reason, charged=verdict.charged)


def _end_of(answer: AttemptAnswer) -> CallEnd:
    """Return how a call ended, as the event says it."""
    error = answer.future.exception()
    if error is not None:
        return "lost" if isinstance(error, WorkerDied) else "failed"
    result = answer.future.result()
    if isinstance(result, Done):
        return "done"
    if isinstance(result, Failed):
        return "failed"
    return "put off" if isinstance(result, Deferred) else "going on"
