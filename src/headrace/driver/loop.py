"""The only loop: schedule, submit, wait, complete, commit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from headrace.core import failures
from headrace.core.engine_ports import Pool
from headrace.core.events import Event, RowsRead, ShardDivided, ShardsAdded
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
from headrace.core.work import CommitRecord, Failed, ObjectsPickled, Outcome, Shard
from headrace.driver.calls import Answer, StageCalls
from headrace.driver.policy import (
    Action,
    AddShards,
    DivideShard,
    DumpStacks,
    Emit,
    EndRun,
    EndWorker,
    Policies,
    Policy,
    ResizePool,
    Restrict,
    RunView,
    StopRun,
    Tell,
)
from headrace.driver.ports import Begin, BlockHolder, Committer, Order, ReaderOutput, RunPorts
from headrace.driver.scheduler import Scheduler

if TYPE_CHECKING:
    import pyarrow as pa

TICK = 0.2  # seconds: the loop turns at least as often
GROUP = 0.025  # seconds: commits that come faster than this share one sync of the journal
WHOLE_RUN = -1  # the shard of an outcome that ends the run and is of no shard


class _Observed(msgspec.Struct, frozen=True):
    """An event that observers have seen, but policies have not."""

    event: RowsRead


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
        self._policies = Policies(policies)
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

    def run(self, pools: Sequence[Pool], blocks: BlockHolder | None = None) -> None:
        """Drive the plan to its end."""
        for _ in self.stream(pools, blocks):
            pass

    def stream(self, pools: Sequence[Pool], blocks: BlockHolder | None = None) -> Iterator[pa.RecordBatch]:
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

    def _connect(self, pools: Sequence[Pool], blocks: BlockHolder | None) -> None:
        scheduler, ports = self.scheduler, self._ports
        self._thread = threading.get_ident()
        self._pools = pools
        self._state = RunView(scheduler, pools, ports.clock)
        self._restriction = Restrict()
        self._calls = StageCalls(pools, blocks, scheduler, self._policies, ports, emit=self._emit)

    # ------------------------------------------------------------ schedule and submit

    def _before_schedule(self) -> None:
        self._restriction = Restrict()
        for policy in self._policies:
            self._carry_out(policy.before_schedule(self._state))

    def _schedule(self) -> list[Order]:
        restriction = self._restriction
        usable = self._state.usable(restriction.ending)
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
        if isinstance(order, Begin) and order.stage == self.scheduler.last_stage:
            after = self._reader.delivered(order.task.shard.index)
            task = msgspec.structs.replace(order.task, after=after)
            order = Begin(order.stage, order.worker, task)
        self._calls.carry_out(order)

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
            timeout = max(0.0, min(TICK, self._policies.next_wakeup(now) - now))
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
            self._policies.on_message(message.event, self._state.now)
        elif isinstance(
            message, (CallStarted, CallEnded, ObjectsPickled, RunInterrupted, RestLeft, MoreShards)
        ):  # too many for observers
            self._policies.on_message(message, self._state.now)
        else:
            self._emit(message)
        return None

    def _answered(self, answer: Answer) -> Outcome | None:
        """Return what became of an attempt at a shard; what became of a task of an earlier stage is recorded."""
        outcome = self._calls.received(answer)
        if answer.stage == self.scheduler.last_stage:
            return outcome
        self.scheduler.complete_block(answer.attempt, outcome)
        return None

    # ------------------------------------------------------------ complete and commit

    def _complete(self, outcome: Outcome) -> Sequence[CommitRecord]:
        """Return the records to commit now, in order."""
        state = self._state
        if state.is_current(outcome):
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
        self._policies.on_message(event, self._state.now)
        self._ports.observer.on_event(event)

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
                open_workers = self._state.open_workers(action.stage)
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
