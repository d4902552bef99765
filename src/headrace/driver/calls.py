"""Calls to the pools of all stages: orders are carried out here, and answers become outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from headrace.core import failures
from headrace.core.engine_ports import Pool
from headrace.core.events import CallEnd, Event, ShardRetried, Worked, WorkerLost
from headrace.core.work import AttemptLost, Deferred, Done, Failed, Outcome
from headrace.driver.policy import Policies, WorkerDeath
from headrace.driver.ports import (
    Begin,
    BlockHolder,
    DropBlock,
    Feed,
    GiveUp,
    KeepBlock,
    Order,
    Proceed,
    RunPorts,
)
from headrace.driver.scheduler import Scheduler
from headrace.errors import WorkerDied


class Answer(msgspec.Struct, frozen=True):
    """The answer to a call for an attempt; when the call was made, and when it was answered."""

    stage: int
    shard: int
    attempt: int
    future: Future[Any]
    called: float
    answered: float

    @property
    def worker(self) -> int:
        """The worker that was called; -1 if the pool does not say."""
        return getattr(self.future, "worker", -1)


class BusyTime:
    """Measures calls: from the call, or from the worker's answer before if that was later, to the answer."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], float] = {}

    def seconds(self, stage: int, worker: int, called: float, answered: float) -> float:
        """Return how long a worker of a stage was at a call; calls are passed in the order of their answers.

        >>> busy = BusyTime()
        >>> busy.seconds(0, 7, called=1.0, answered=3.0), busy.seconds(0, 7, called=1.0, answered=3.5)
        (2.0, 0.5)
        """
        began = max(called, self._free.get((stage, worker), called))
        self._free[stage, worker] = max(answered, began)
        return max(0.0, answered - began)


class StageCalls:
    """Calls the workers of ``pools``, one for each stage; ``blocks`` holds the blocks between stages."""

    def __init__(
        self,
        pools: Sequence[Pool],
        blocks: BlockHolder | None,
        scheduler: Scheduler,
        policies: Policies,
        ports: RunPorts,
        *,
        emit: Callable[[Event], None],
    ) -> None:
        self._pools = pools
        self._blocks = blocks
        self._scheduler = scheduler
        self._policies = policies
        self._ports = ports
        self._emit = emit
        self._busy = BusyTime()

    # ------------------------------------------------------------ orders

    def carry_out(self, order: Order) -> None:
        """Do what the scheduler wants done."""
        if isinstance(order, Begin):
            task = self._policies.before_submit(order.task)
            self._call(order, task.shard.index, task.attempt, "attempt", task)
        elif isinstance(order, Proceed):
            name = order.shard, order.attempt
            self._call(order, *name, "proceed", *name, order.schema)
        elif isinstance(order, GiveUp):
            self._pools[order.stage].submit("give_up", order.shard, order.attempt, worker=order.worker)
        elif isinstance(order, Feed):
            self._pools[-1].feed(order.worker, order.shard, order.attempt, order.item)
        elif self._blocks is not None:
            if isinstance(order, KeepBlock):
                self._blocks.hold(order.ref)
            elif isinstance(order, DropBlock):
                self._blocks.release(order.ref)

    def _call(self, order: Begin | Proceed, shard: int, attempt: int, method: str, *args: Any) -> None:
        stage, clock, put = order.stage, self._ports.clock, self._ports.inbox.put
        called = clock()  # a pool that is this process answers before it returns
        future = self._pools[stage].submit(method, *args, worker=order.worker)
        future.add_done_callback(lambda done: put(Answer(stage, shard, attempt, done, called, clock())))

    # ------------------------------------------------------------ answers

    def received(self, answer: Answer) -> Outcome | None:
        """Report a call that was answered, and return what became of the attempt; None if it had ended before."""
        self._report(answer)
        error = answer.future.exception()
        if error is None:
            return answer.future.result()  # type: ignore[no-any-return]
        if isinstance(error, WorkerDied):
            return self._after_death(answer, error)
        return Failed(answer.shard, answer.attempt, failures.of_a_call(error))

    def _report(self, answer: Answer) -> None:
        """Report how long a worker was at an attempt, and how the call ended."""
        seconds = self._busy.seconds(answer.stage, answer.worker, answer.called, answer.answered)
        shard, attempt = answer.shard, answer.attempt
        if self._is_of_blocks(answer):  # observers know the attempts at shards, for which these are
            shard = shard if self._scheduler.blocks.expects(attempt) else -1
            attempt = self._scheduler.blocks.attempt_of(shard)
        worked = Worked(answer.stage, answer.worker, shard, attempt, seconds, _end_of(answer))
        if worked.outcome == "done":
            done = answer.future.result()
            worked = msgspec.structs.replace(worked, rows=done.ledger.read, timings=done.timings)
        if shard >= 0:
            self._emit(worked)
        else:  # the task is not needed any more, which is of no interest to observers
            self._policies.on_message(worked, answer.answered)

    def _after_death(self, answer: Answer, error: WorkerDied) -> Outcome:
        shard, attempt, worker, reason = answer.shard, answer.attempt, answer.worker, str(error)
        of_blocks, scheduler = self._is_of_blocks(answer), self._scheduler
        if not of_blocks:
            self._emit(WorkerLost(worker, reason))
            death = WorkerDeath(error, worker, shard, at_work=scheduler.shard_at_death(worker) == shard)
        elif scheduler.blocks.expects(attempt):
            death = WorkerDeath(error, worker, shard, rows=scheduler.blocks.rows_read(attempt))
        else:
            return AttemptLost(shard, attempt, reason, charged=False)
        verdict = self._policies.on_death(death)
        if verdict.restart:
            scheduler.blocks.restart(shard, reason)
        if verdict.error is not None:
            return Failed(shard, attempt, verdict.error)
        if not of_blocks:
            self._emit(ShardRetried(shard, attempt + 1, reason))
        return AttemptLost(shard, attempt, reason, charged=verdict.charged)

    def _is_of_blocks(self, answer: Answer) -> bool:
        return answer.stage < self._scheduler.last_stage


def _end_of(answer: Answer) -> CallEnd:
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
