"""Calls to the pool of the last stage: an attempt is submitted here, and its answer becomes an outcome."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from headrace.core import failures
from headrace.core.events import Event, ShardRetried, Worked, WorkerLost
from headrace.core.ports import Pool
from headrace.core.work import AttemptLost, Deferred, Done, Failed, Outcome, Task
from headrace.driver.busy_time import BusyTime
from headrace.driver.orders import Proceed
from headrace.driver.policy import Policies, WorkerDeath
from headrace.driver.ports import RunPorts
from headrace.driver.scheduler import Scheduler
from headrace.errors import WorkerDied


@dataclass(frozen=True, slots=True)
class AttemptAnswer:
    """The answer to a call for an attempt; when the call was made, and when it was answered."""

    shard: int
    attempt: int
    future: Future[Any]
    called: float
    answered: float


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
        future = self._pool.submit("proceed", order.shard, order.schema, worker=order.worker)
        self._expect(future, order.shard, self._scheduler.attempt_of(order.shard))

    def _expect(self, future: Future[Any], shard: int, attempt: int) -> None:
        called, clock, put = self._ports.clock(), self._ports.clock, self._ports.inbox.put
        future.add_done_callback(lambda done: put(AttemptAnswer(shard, attempt, done, called, clock())))

    def outcome(self, answer: AttemptAnswer) -> Outcome:
        """Return what an answer means for the attempt, and report the call to the observers."""
        shard, attempt, error = answer.shard, answer.attempt, answer.future.exception()
        worker = getattr(answer.future, "worker", -1)
        result: Any = error or answer.future.result()
        seconds = self._busy.seconds(self._stage, worker, answer.called, answer.answered)
        self._emit(_worked(self._stage, worker, shard, attempt, seconds, result))
        if error is None:
            return result  # type: ignore[no-any-return]
        if isinstance(error, WorkerDied):
            return self._after_death(error, worker, shard, attempt)
        return Failed(shard, attempt, failures.of_a_call(error))

    def _after_death(self, error: WorkerDied, worker: int, shard: int, attempt: int) -> Outcome:
        reason = str(error)
        self._emit(WorkerLost(worker, reason))
        at_work = self._scheduler.shard_at_death(worker) == shard
        verdict = self._policies.on_death(WorkerDeath(error, worker, shard, at_work=at_work))
        if verdict.error is not None:
            return Failed(shard, attempt, verdict.error)
        self._emit(ShardRetried(shard, attempt + 1, reason))
        return AttemptLost(shard, attempt, reason, charged=verdict.charged)


def _worked(stage: int, worker: int, shard: int, attempt: int, seconds: float, result: Any) -> Worked:
    """Return the event of a call: ``result`` is its outcome, or the error that it ended in."""
    if isinstance(result, Done):
        return Worked(stage, worker, shard, attempt, seconds, "done", result.ledger.read, result.timings)
    if isinstance(result, WorkerDied):
        return Worked(stage, worker, shard, attempt, seconds, "lost")
    if isinstance(result, (Failed, BaseException)):
        return Worked(stage, worker, shard, attempt, seconds, "failed")
    put_off = isinstance(result, Deferred)
    return Worked(stage, worker, shard, attempt, seconds, "put off" if put_off else "going on")
