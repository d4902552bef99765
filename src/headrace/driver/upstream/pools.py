"""Carries out what the upstream scheduler decides: calls tasks on the pools of earlier stages, sends blocks on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core import failures
from headrace.core.engine_ports import Pool
from headrace.core.events import Event, Worked
from headrace.core.work import (
    AttemptLost,
    AttemptWaiting,
    BlocksFreed,
    Done,
    ErrorReport,
    Failed,
    Outcome,
    Pause,
    Task,
)
from headrace.driver.busy_time import BusyTime
from headrace.driver.policy import Policies, WorkerDeath
from headrace.driver.ports import BlockHolder, RunPorts
from headrace.driver.upstream.orders import (
    BeginTask,
    CancelTask,
    DropBlock,
    EndAttempt,
    KeepBlock,
    NextBlock,
    SendBlock,
    UpstreamOrder,
)
from headrace.driver.upstream.scheduler import UpstreamScheduler
from headrace.errors import WorkerDied


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """The answer to a call for a task; when the call was made, and when it was answered."""

    shard: int
    task: int
    future: Future[Any]
    stage: int
    called: float
    answered: float


class UpstreamPools:
    """The stages before the last, with their pools; ``pools`` has that of the last stage, too."""

    def __init__(
        self,
        scheduler: UpstreamScheduler,
        pools: Sequence[Pool],
        blocks: BlockHolder,
        policies: Policies,
        ports: RunPorts,
        *,
        emit: Callable[[Event], None],
    ) -> None:
        self._scheduler = scheduler
        self._pools = pools
        self._blocks = blocks
        self._policies = policies
        self._ports = ports
        self._emit = emit
        # By shard: attempts whose blocks are made, and that are not begun.
        self._prepared: dict[int, Task] = {}
        self._busy = BusyTime()

    @property
    def error(self) -> ErrorReport | None:
        """The error that ends the run, if there is one."""
        return self._scheduler.error

    # ------------------------------------------------------------ attempts of the last stage

    def prepare(self, task: Task, worker: int) -> None:
        """Have the blocks made that an attempt will need; it begins later."""
        self._prepared[task.shard.index] = self._scheduler.open(task, worker)

    def open(self, task: Task, worker: int) -> Task:
        """An attempt begins: have its blocks made, if that was not prepared. Return the task for its worker."""
        prepared = self._prepared.pop(task.shard.index, None)
        if prepared is not None and prepared.attempt == task.attempt:
            return prepared
        return self._scheduler.open(task, worker)

    def completed(self, outcome: Outcome) -> Outcome:
        """Make nothing more for an attempt that has ended; add what earlier stages did to its outcome."""
        if isinstance(outcome, Pause):
            return outcome
        shard, attempt = outcome.shard, outcome.attempt
        if isinstance(outcome, Done) and self._scheduler.attempt_of(shard) == attempt:
            outcome = self._scheduler.with_upstream(outcome)
        self._scheduler.close(shard, attempt)
        return outcome

    # ------------------------------------------------------------ orders

    def schedule(self, loads: Sequence[Mapping[int, int]], *, needed_only: bool) -> None:
        """Ask for the blocks that are to be made now, and send attempts those that are there.

        ``loads`` are those of the workers of each earlier stage that may be given work.
        """
        for order in self._scheduler.ready(loads, needed_only=needed_only):
            self._carry_out(order)

    def _carry_out(self, order: UpstreamOrder) -> None:
        if isinstance(order, BeginTask):
            task = self._policies.before_submit(order.task)
            self._call(order.stage, order.worker, "attempt", task.shard.index, task.attempt, task)
        elif isinstance(order, NextBlock):
            call = order.shard, order.task
            self._call(order.stage, order.worker, "proceed", *call, *call, None)
        elif isinstance(order, CancelTask):
            self._pools[order.stage].submit("give_up", order.shard, order.task, worker=order.worker)
        elif isinstance(order, SendBlock):
            self._pools[-1].feed(order.worker, order.shard, order.attempt, order.block)
        elif isinstance(order, EndAttempt):
            self._pools[-1].feed(order.worker, order.shard, order.attempt, order.reason)
        elif isinstance(order, KeepBlock):
            self._blocks.hold(order.ref)
        elif isinstance(order, DropBlock):
            self._blocks.release(order.ref)

    def _call(self, stage: int, worker: int, method: str, shard: int, task: int, *args: Any) -> None:
        future = self._pools[stage].submit(method, *args, worker=worker)
        called, clock, put = self._ports.clock(), self._ports.clock, self._ports.inbox.put
        future.add_done_callback(lambda done: put(TaskAnswer(shard, task, done, stage, called, clock())))

    # ------------------------------------------------------------ messages

    def received(self, message: Any) -> bool:
        """Say whether a message is for the stages before the last; if so, it is dealt with."""
        if isinstance(message, TaskAnswer):
            self._answered(message)
        elif isinstance(message, BlocksFreed):
            self._scheduler.freed(message)
        elif isinstance(message, AttemptWaiting):
            self._scheduler.attempt_waits(message)
        else:
            return False
        return True

    def _answered(self, answer: TaskAnswer) -> None:
        self._report(answer)
        error, worker = answer.future.exception(), getattr(answer.future, "worker", -1)
        if error is None:
            outcome = answer.future.result()
            if outcome is None:
                self._scheduler.had_ended(answer.task)
            else:
                self._scheduler.complete(outcome)
        elif isinstance(error, WorkerDied):
            self._after_death(answer, worker, error)
        else:
            self._scheduler.complete(Failed(answer.shard, answer.task, failures.of_a_call(error)))

    def _report(self, answer: TaskAnswer) -> None:
        """Report how long a worker was at a task."""
        worker, shard = getattr(answer.future, "worker", -1), self._scheduler.shard_of(answer.task)
        seconds = self._busy.seconds(answer.stage, worker, answer.called, answer.answered)
        attempt = -1 if shard is None else self._scheduler.attempt_of(shard)
        event = Worked(answer.stage, worker, -1 if shard is None else shard, attempt, seconds, "going on")
        error = answer.future.exception()
        if error is not None:
            outcome = "lost" if isinstance(error, WorkerDied) else "failed"
            event = msgspec.structs.replace(event, outcome=outcome)
        elif isinstance(result := answer.future.result(), Done):
            event = msgspec.structs.replace(
                event, outcome="done", rows=result.ledger.read, timings=result.timings
            )
        elif isinstance(result, Failed):
            event = msgspec.structs.replace(event, outcome="failed")
        if shard is not None:
            self._emit(event)
        else:  # the task is not needed any more, which is of no interest to observers
            self._policies.on_message(event, answer.answered)

    def _after_death(self, answer: TaskAnswer, worker: int, error: WorkerDied) -> None:
        shard, task, reason = answer.shard, answer.task, str(error)
        if self._scheduler.shard_of(task) is None:
            self._scheduler.complete(AttemptLost(shard, task, reason, charged=False))
            return
        rows = self._scheduler.rows_read(task)
        verdict = self._policies.on_death(WorkerDeath(error, worker, shard, rows=rows))
        if verdict.restart:
            self._scheduler.restart(shard, reason)
        if verdict.error is not None:
            self._scheduler.complete(Failed(shard, task, verdict.error))
        else:
            self._scheduler.complete(AttemptLost(shard, task, reason, verdict.charged))
