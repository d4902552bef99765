"""The only loop: schedule, submit, wait, complete, commit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from headrace.core import failures
from headrace.core.engine_ports import Engine, Pool
from headrace.core.events import (
    CallEnd,
    Event,
    RowsRead,
    ShardDivided,
    ShardRetried,
    ShardsAdded,
    Worked,
    WorkerLost,
)
from headrace.core.messages import (
    AttemptFinishing,
    AttemptWaiting,
    BlocksFreed,
    CallEnded,
    CallStarted,
    MoreShards,
    RestLeft,
    RunInterrupted,
)
from headrace.core.work import (
    AttemptLost,
    CommitRecord,
    Deferred,
    Done,
    Failed,
    ObjectsPickled,
    Outcome,
    Shard,
)
from headrace.driver.policy import (
    Action,
    AddShards,
    DivideShard,
    DumpStacks,
    Emit,
    EndRun,
    EndWorker,
    Policy,
    ResizePool,
    Restrict,
    RunView,
    StopRun,
    Tell,
    Verdict,
    WorkerDeath,
)
from headrace.driver.ports import (
    Begin,
    Committer,
    DropBlock,
    Feed,
    GiveUp,
    KeepBlock,
    Order,
    Proceed,
    ReaderOutput,
    RunPorts,
)
from headrace.driver.scheduler import Scheduler
from headrace.errors import WorkerDied

if TYPE_CHECKING:
    import pyarrow as pa

TICK = 0.2  # seconds: the loop turns at least as often
GROUP = 0.025  # seconds: commits that come faster than this share one sync of the journal
WHOLE_RUN = -1  # the shard of an outcome that ends the run and is of no shard


class _Observed(msgspec.Struct, frozen=True):
    """An event that observers have seen, but policies have not."""

    event: RowsRead


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


class Runner:
    """Drives one scheduler over the pools of a plan's stages, into one committer."""

    def __init__(
        self,
        scheduler: Scheduler,
        committer: Committer,
        *,
        policies: Iterable[Policy] = (),
        ports: RunPorts | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._committer = committer
        self._policies = tuple(policies)  # in the order in which they are asked
        self._ports = ports or RunPorts()
        self._reader = ReaderOutput()
        self._schema = scheduler.schema
        self._flushed = -GROUP
        self._thread = 0

    def notify(self, worker: int, message: Any) -> None:
        """Receive a worker's message; may be called from any thread, also from the loop's own.

        A worker that is this thread says how far it is while the loop waits for it: observers see that at once.
        """
        if isinstance(message, RowsRead) and threading.get_ident() == self._thread:
            self._ports.observer.on_event(message)
            self._ports.observer.tick()
            message = _Observed(message)
        self._ports.inbox.put(message)

    def interrupt(self) -> None:
        """Commit what is done, and stop; may be called from a signal handler."""
        self._ports.inbox.put(RunInterrupted())

    def run(self, pools: Sequence[Pool], blocks: Engine | None = None) -> None:
        """Drive the plan to its end."""
        for _ in self.stream(pools, blocks):
            pass

    def stream(self, pools: Sequence[Pool], blocks: Engine | None = None) -> Iterator[pa.RecordBatch]:
        """Drive the plan to its end; yields its output, in order, if the plan is read rather than written.

        ``pools`` has one pool for each stage; ``blocks`` holds the blocks between them, if there are several.
        """
        self._connect(pools, blocks)
        scheduler, committer = self.scheduler, self._committer
        while not scheduler.finished:
            self._before_schedule()
            for order in self._schedule():
                self._submit(order)
            self._after_schedule()
            for outcome in self._wait():
                for record in self._complete(outcome):
                    committer.accept(record)
                self._settle_schema()
            self._flush()
            self._ports.observer.tick()
            yield from self._reader.ready(scheduler.head)
        committer.commit_accepted()
        yield from self._reader.ready(scheduler.head)
        if scheduler.error is not None:
            raise failures.revive(scheduler.error)

    def _connect(self, pools: Sequence[Pool], blocks: Engine | None) -> None:
        scheduler, ports = self.scheduler, self._ports
        self._thread = threading.get_ident()
        self._pools = pools
        self._state = RunView(scheduler, pools, ports.clock)
        self._restriction = Restrict()
        self._blocks = blocks
        self._busy = BusyTime()

    # ------------------------------------------------------------ schedule and submit

    def _before_schedule(self) -> None:
        self._restriction = Restrict()
        for policy in self._policies:
            self._carry_out(policy.before_schedule(self._state))

    def _schedule(self) -> list[Order]:
        restriction = self._restriction
        usable = [
            {worker: load for worker, load in pool.loads().items() if worker not in restriction.ending}
            for pool in self._pools
        ]
        orders = self.scheduler.ready(
            usable,
            begin_ahead=restriction.ahead,
            begin=restriction.begin,
            needed_only=restriction.needed_only,
        )
        self._state.holds = not restriction.begin
        self._state.nothing_begins = restriction.begin and self.scheduler.idle and bool(usable[-1])
        return orders

    def _submit(self, order: Order) -> None:
        """Do what the scheduler wants done."""
        if isinstance(order, Begin):
            task = order.task
            if order.stage == self.scheduler.last_stage:
                after = self._reader.delivered(task.shard.index)
                task = msgspec.structs.replace(task, after=after)
            for policy in self._policies:
                task = policy.before_submit(task)
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

    def _after_schedule(self) -> None:
        for policy in self._policies:
            self._carry_out(policy.after_schedule(self._state))

    # ------------------------------------------------------------ wait

    def _wait(self) -> Iterator[Outcome]:
        """Yield the outcomes that have arrived, once at least one message has, or time is up."""
        inbox, state = self._ports.inbox, self._state
        timeout = GROUP
        if not self._committer.pending:
            now = state.now
            wakeups = (policy.next_wakeup(now) for policy in self._policies)
            timeout = max(0.0, min((TICK, *(wakeup - now for wakeup in wakeups))))
        try:
            message = inbox.get(timeout=timeout)
            while True:
                state.messages += 1
                outcome = self._received(message)
                if outcome is not None:
                    yield outcome
                message = inbox.get_nowait()
        except queue.Empty:
            state.silence += timeout  # too much if there were messages, which does no harm

    def _received(self, message: Any) -> Outcome | None:
        """Pass a message on to where it belongs; return the outcome if it is the answer to a call."""
        if isinstance(message, Answer):
            return self._answered(message)
        if isinstance(message, AttemptFinishing):
            self.scheduler.finishing(message.shard, message.attempt)
        elif isinstance(message, BlocksFreed):
            self.scheduler.blocks.freed(message)
        elif isinstance(message, AttemptWaiting):
            self.scheduler.blocks.attempt_waits(message)
        elif isinstance(message, _Observed):
            self._tell(message.event, self._state.now)
        elif isinstance(
            message, (CallStarted, CallEnded, ObjectsPickled, RunInterrupted, RestLeft, MoreShards)
        ):  # too many for observers
            self._tell(message, self._state.now)
        else:
            self._emit(message)
        return None

    def _answered(self, answer: Answer) -> Outcome | None:
        """Return what became of an attempt at a shard; what became of a task of an earlier stage is recorded."""
        outcome = self._outcome_of(answer)
        if answer.stage == self.scheduler.last_stage:
            return outcome
        self.scheduler.complete_block(answer.attempt, outcome)
        return None

    def _outcome_of(self, answer: Answer) -> Outcome | None:
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
            shard = shard if self.scheduler.blocks.expects(attempt) else -1
            attempt = self.scheduler.blocks.attempt_of(shard)
        worked = Worked(answer.stage, answer.worker, shard, attempt, seconds, _end_of(answer))
        if worked.outcome == "done":
            done = answer.future.result()
            worked = msgspec.structs.replace(worked, rows=done.ledger.read, timings=done.timings)
        if shard >= 0:
            self._emit(worked)
        else:  # the task is not needed any more, which is of no interest to observers
            self._tell(worked, answer.answered)

    def _after_death(self, answer: Answer, error: WorkerDied) -> Outcome:
        shard, attempt, worker, reason = answer.shard, answer.attempt, answer.worker, str(error)
        of_blocks, scheduler = self._is_of_blocks(answer), self.scheduler
        if not of_blocks:
            self._emit(WorkerLost(worker, reason))
            death = WorkerDeath(error, worker, shard, at_work=scheduler.shard_at_death(worker) == shard)
        elif scheduler.blocks.expects(attempt):
            death = WorkerDeath(error, worker, shard, rows=scheduler.blocks.rows_read(attempt))
        else:
            return AttemptLost(shard, attempt, reason, charged=False)
        verdicts = (policy.on_death(death) for policy in self._policies)
        verdict = next((each for each in verdicts if each is not None), Verdict(charged=True))
        if verdict.restart:
            scheduler.blocks.restart(shard, reason)
        if verdict.error is not None:
            return Failed(shard, attempt, verdict.error)
        if not of_blocks:
            self._emit(ShardRetried(shard, attempt + 1, reason))
        return AttemptLost(shard, attempt, reason, charged=verdict.charged)

    def _is_of_blocks(self, answer: Answer) -> bool:
        return answer.stage < self.scheduler.last_stage

    # ------------------------------------------------------------ complete and commit

    def _complete(self, outcome: Outcome) -> Sequence[CommitRecord]:
        """Return the records to commit now, in order."""
        state = self._state
        if self.scheduler.is_current(outcome):
            self._reader.add(outcome)
        outcome = self.scheduler.with_all_stages(outcome)
        for policy in self._policies:
            decided = policy.on_outcome(outcome, state)
            if isinstance(decided, DivideShard):
                self._divide(decided)
            else:
                outcome = decided
        records = self.scheduler.complete(outcome)
        for record in records:
            self._reader.committed(record.shard)
        return records

    def _settle_schema(self) -> None:
        if self._schema is None and self.scheduler.schema is not None:
            self._schema = self.scheduler.schema = self._committer.settle(self.scheduler.schema)

    def _flush(self) -> None:
        """Make commits durable, in groups."""
        committer, now = self._committer, self._state.now
        if committer.pending and (self.scheduler.finished or now - self._flushed >= GROUP):
            committer.commit_accepted(wait=False)
            self._flushed = self._state.now

    # ------------------------------------------------------------ actions of policies

    def _emit(self, event: Event) -> None:
        self._tell(event, self._state.now)
        self._ports.observer.on_event(event)

    def _tell(self, message: Any, now: float) -> None:
        """Pass a message on to all policies."""
        for policy in self._policies:
            policy.on_message(message, now)

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Emit):
                self._emit(action.event)
            elif isinstance(action, Restrict):
                self._restriction &= action
            elif isinstance(action, EndWorker):
                self._end_worker(action)
            elif isinstance(action, Tell):
                self._pools[action.stage].feed(action.worker, action.shard, action.attempt, action.what)
            elif isinstance(action, StopRun):
                self.scheduler.stop()
            elif isinstance(action, ResizePool):
                open_workers = self.scheduler.open_workers(action.stage)
                self._pools[action.stage].resize(action.size, keep=open_workers)
            elif isinstance(action, DivideShard):
                self._divide(action)
            elif isinstance(action, AddShards):
                self._add(action.shards)
            elif isinstance(action, DumpStacks):
                for pool in self._pools:
                    pool.dump()
                self._ports.sleep(action.seconds)
            elif isinstance(action, EndRun):
                self.scheduler.complete(Failed(WHOLE_RUN, -1, action.error))
            else:
                assert_never(action)

    def _end_worker(self, end: EndWorker) -> None:
        pools = self._pools if end.stage is None else [self._pools[end.stage]]
        for pool in pools:
            pool.kill(end.worker, end.reason, replace=end.replaced)
        if not end.charged:
            self.scheduler.never_charge(end.worker)

    def _divide(self, division: DivideShard) -> None:
        parts = division.parts
        self._committer.divide(parts, early=division.early)
        self.scheduler.divide(parts)
        self._emit(
            ShardDivided(
                parts[0].index, len(parts), division.early, {part.index: part.size for part in parts}
            )
        )

    def _add(self, new: Sequence[Shard]) -> None:
        first = self.scheduler.count
        shards = [msgspec.structs.replace(shard, index=first + i) for i, shard in enumerate(new)]
        if shards:
            self._committer.extend(shards)
            rows = [shard.rows for shard in shards]
            sizes = {shard.index: shard.size for shard in shards}
            self._emit(ShardsAdded(len(shards), -1 if min(rows) < 0 else sum(rows), sizes))
        self.scheduler.extend(shards)


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
