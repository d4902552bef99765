"""The only loop: ask the scheduler, submit, wait, commit."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa

from millrace.core.batch import from_ipc
from millrace.core.events import (
    BatchShrunk,
    Event,
    MemoryTaken,
    PoolResized,
    ShardDivided,
    ShardRetried,
    Worked,
    WorkerLost,
    WorkerRetired,
)
from millrace.core.ports import Accumulator, Pool
from millrace.core.work import (
    BlockRef,
    Blocks,
    CommitRecord,
    Deferred,
    Done,
    ErrorReport,
    Failed,
    Faults,
    Finishing,
    Handed,
    Ledger,
    Lost,
    Outcome,
    Proposal,
    Remainder,
    Shard,
    Task,
    Timings,
)
from millrace.errors import Stalled, WorkerDied
from millrace.run import failures
from millrace.run.accounts import Accounts
from millrace.run.allowance import Allowance
from millrace.run.blame import blame_for
from millrace.run.counting import States, merge
from millrace.run.dividing import parted, parts_of, refused
from millrace.run.elastic import Elastic
from millrace.run.relief import Relief
from millrace.run.rest import Rest
from millrace.run.scheduler import Begin, Order, Prepare, Scheduler
from millrace.run.spans import Spans
from millrace.run.suspicion import Suspicion

if TYPE_CHECKING:
    from millrace.run.makers import Makers
    from millrace.run.supply import Supply

TICK = 0.2
DUMP = 1.0  # seconds for workers to print their stacks
GROUP = 0.025  # seconds: commits that come faster than this share one sync of the journal


class Committer(Protocol):
    """Takes commit records and makes them last."""

    def settle(self, schema: bytes) -> None:
        """Make the output schema last, before any worker opens a part with it."""
        ...

    @property
    def ceilings(self) -> dict[str, int]:
        """How many rows at a time fit into memory, by the labels of steps, as far as that was found out."""
        ...

    def lower(self, step: str, rows: int) -> None:
        """Remember a ceiling; it lasts from the next ``flush`` on."""
        ...

    def commit(self, record: CommitRecord) -> None:
        """Take a record; it lasts from the next ``flush`` on."""
        ...

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        """Take note that a shard is done in parts, and make that last; with the next ``flush`` if it is ``early``."""
        ...

    def flush(self) -> None:
        """Make what was committed last."""
        ...

    @property
    def pending(self) -> bool:
        """True while something waits for ``flush``."""
        ...


class Tally:
    """A committer for runs that leave nothing behind: it only adds up, and merges the states of ``metrics``."""

    pending = False

    def __init__(self, metrics: Sequence[tuple[str, Accumulator]] = ()) -> None:
        self._metrics = metrics
        self._totals = [metric.empty() for _, metric in metrics]
        self._waiting: dict[int, States] = {}  # by shard: those before it are not there yet
        self._next = 0
        self.ledger = Ledger()
        self.timings = Timings()
        self.faults = Faults()
        self.ceilings: dict[str, int] = {}

    def settle(self, schema: bytes) -> None:
        """Nothing to keep."""

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        """Nothing to keep."""

    def lower(self, step: str, rows: int) -> None:
        """Remember it."""
        self.ceilings[step] = rows

    def commit(self, record: CommitRecord) -> None:
        """Add up."""
        self.ledger += record.ledger
        self.timings += record.timings
        self.faults += record.faults
        if self._metrics:
            self._waiting[record.shard] = record.states
            while self._next in self._waiting:
                self._merge(self._next)
                self._next += 1

    def _merge(self, shard: int) -> None:
        merge(self._totals, self._waiting.pop(shard))

    def totals(self) -> list[Accumulator]:
        """Return the metrics of all shards, when all are there."""
        for shard in sorted(self._waiting):
            self._merge(shard)
        return self._totals

    def flush(self) -> None:
        """Nothing to keep."""


class Runner:
    """Drives one scheduler over a pool, and a supply over the pools of earlier stages, into one committer.

    ``bounds`` has, for each stage's pool, how few and how many workers it may have. After ``commit_every`` seconds of
    work a shard is parted, so that what is done of it can be committed; 0: never.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        committer: Committer,
        *,
        supply: Supply | None = None,
        bounds: Sequence[tuple[int, int]] = (),
        watch: Callable[[Event], None] = lambda event: None,
        tick: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        allowance: Allowance | None = None,
        suspicion: Suspicion | None = None,
        stall_timeout: float = 300.0,
        relief: Relief | None = None,
        accounts: Accounts | None = None,
        commit_every: float = 0.0,
    ) -> None:
        self._every = commit_every if scheduler.dividable else 0.0
        self._accounts = accounts
        self._allowance = allowance or Allowance()
        self._suspicion = suspicion or Suspicion()
        self._relief = relief or Relief()
        self._rest: Rest[Lost] = Rest()
        self._scheduler = scheduler
        self._committer = committer
        self._supply = supply
        self._elastic = [Elastic(least, most) if least < most else None for least, most in bounds]
        self._makers: Makers | None = None
        self._watch = watch
        self._tick = tick
        self._clock = clock
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._schema = scheduler.schema
        self._flushed = -GROUP
        self._blocks: dict[int, list[Blocks]] = {}
        self._delivered: dict[int, Handed] = {}  # by shard, while it is not done
        self._prepared: dict[int, Task] = {}
        self._spans = Spans()
        self._last = 0  # the number of the last stage
        self._quiet = 0.0  # seconds in which nobody was at work and no message came
        self._patience = stall_timeout

    def notify(self, worker: int, message: Any) -> None:
        """Take what a worker tells in passing; may be called from any thread."""
        self._inbox.put(message)

    def run(self, pool: Pool) -> None:
        """Drive the plan to its end."""
        for _ in self.stream(pool):
            pass

    def stream(
        self,
        pool: Pool,
        earlier: Sequence[Pool] = (),
        drop: Callable[[BlockRef], None] = lambda ref: None,
        keep: Callable[[BlockRef], None] = lambda ref: None,
    ) -> Iterator[pa.RecordBatch]:
        """Drive the plan to its end; yields its output, in order, if the plan is read rather than written.

        ``earlier`` are the pools of the stages before the last; ``drop`` lets go of a block, ``keep`` holds
        it for two readers.
        """
        scheduler, committer = self._scheduler, self._committer
        if self._supply is not None:
            from millrace.run.makers import Makers  # a plan of one stage has no use for it

            self._makers = Makers(
                self._supply,
                earlier,
                pool,
                drop,
                keep,
                self._inbox.put,
                self._suspicion,
                self._relief,
                ceilings=committer.ceilings,
                watch=self._watch,
                clock=self._clock,
            )
        pools = [*earlier, pool]
        self._last = len(earlier)
        while not scheduler.finished:
            self._relieve(pools)
            live = self._relief.live(pool.loads())
            orders = scheduler.ready(live, ahead=self._relief.ahead)
            for order in orders:
                self._submit(pool, order)
            if self._makers is not None:
                self._makers.order()
            if any(self._elastic):
                self._resize(pools)
            idle = not orders and scheduler.idle and bool(live)
            self._check_progress(pools, idle=idle)
            for outcome in self._wait():
                self._keep(outcome)
                outcome = self._checked(self._settled(outcome))
                self._allowance.check(outcome)
                outcome = self._divided(outcome)
                if isinstance(outcome, Lost) and outcome.blame:
                    self._rest.add(outcome.shard, outcome, self._clock())
                else:
                    self._complete(outcome)
            for outcome in self._rest.over(self._clock()):
                self._complete(outcome)
            if committer.pending and (scheduler.finished or self._clock() - self._flushed >= GROUP):
                committer.flush()
                self._flushed = self._clock()
            for worker, reason in self._suspicion.overdue(self._clock()):
                for each in pools:
                    each.kill(worker, reason)
            self._tick()
            yield from self._deliver()
        committer.flush()
        yield from self._deliver()
        if scheduler.error is not None:
            raise failures.revive(scheduler.error)

    def _complete(self, outcome: Outcome) -> None:
        if isinstance(outcome, Done) and outcome.rest is not None:
            self._part(outcome, outcome.rest)
        for record in self._scheduler.complete(outcome):
            self._delivered.pop(record.shard, None)
            self._committer.commit(record)
        if self._scheduler.schema is not None and self._schema is None:
            self._schema = self._scheduler.schema
            self._committer.settle(self._schema)

    def _part(self, done: Done, rest: Remainder) -> None:
        """Have what an attempt left of its shard done as a shard of its own."""
        scheduler = self._scheduler
        if scheduler.attempt_of(done.shard) != done.attempt:
            return
        shard = scheduler.shard_of(done.shard)
        parts = parted(shard, rest, scheduler.count, scheduler.family(done.shard))
        self._committer.divide(parts, early=True)
        scheduler.divide(parts)
        self._watch(ShardDivided(done.shard, len(parts), early=True))

    def _check_progress(self, pools: Sequence[Pool], *, idle: bool) -> None:
        """End a run in which nobody is at work and nothing is heard any more: that would be so for ever."""
        if self._scheduler.finished or not (idle or self._quiet):
            return
        starving = self._supply.starving if self._supply is not None else 0
        if not idle and sum(sum(pool.loads().values()) for pool in pools) > starving:
            self._quiet = 0.0
            return
        if not idle and self._quiet < self._patience:
            return
        for pool in pools:
            pool.dump()
        if not idle:
            time.sleep(DUMP)
        raise Stalled(
            f"Nothing has happened for {self._quiet:.0f} s, no worker is at work, and no shard can begin. What the "
            "workers' threads are at stands above, on standard error. This is a defect of ours: please report it. "
            "What was committed is kept; the same command, run again, goes on from there."
        )

    def _resize(self, pools: Sequence[Pool]) -> None:
        """Let pools with bounds grow and shrink with their work."""
        for stage, (pool, elastic) in enumerate(zip(pools, self._elastic, strict=True)):
            if elastic is None:
                continue
            last = self._supply is None or stage + 1 == len(pools)
            waiting = self._scheduler.waiting if last or self._supply is None else self._supply.waiting(stage)
            before = elastic.size
            size = elastic.wanted(pool.loads(), waiting=waiting, now=self._clock())
            if size != before:
                pool.resize(size, keep=self._scheduler.holders if last else self._held(stage))
                self._watch(PoolResized(stage, size))

    def _relieve(self, pools: Sequence[Pool]) -> None:
        """End a worker if memory is about to run out."""
        blocks = self._supply.held if self._supply is not None else 0
        end = self._relief.look(pools, blocks, self._clock(), self._holders)
        if (sample := self._relief.sample) is not None:
            taken = tuple(sum(stage.values()) for stage in sample.stages)
            self._watch(MemoryTaken(sample.driver, sample.blocks, taken, self._relief.limit))
        if isinstance(end, ErrorReport):
            self._scheduler.complete(Failed(-1, -1, end))
        elif end is not None:
            pools[end.stage].kill(end.worker, end.reason, replace=end.replaced)
            self._scheduler.excuse(end.worker)
            elastic = self._elastic[end.stage] if self._elastic else None
            if elastic is not None and not end.replaced:
                elastic.lose()
            self._watch(
                WorkerRetired(end.stage, end.worker, end.taken, end.limit, end.replaced, end.idle, end.reason)
            )

    def _divided(self, outcome: Outcome) -> Outcome:
        """Divide a shard that did not fit, now that nobody is at it."""
        if not isinstance(outcome, Lost) or self._scheduler.attempt_of(outcome.shard) != outcome.attempt:
            return outcome
        found = self._relief.too_big(outcome.shard)
        if found is None:
            return outcome
        shard = self._scheduler.shard_of(found.shard)
        if not self._scheduler.dividable:
            why = "A plan with a limit, or one that is read in order, has no shard divided."
            return Failed(outcome.shard, outcome.attempt, refused(shard, found.reason, why))
        parts = parts_of(shard, found.rows, self._scheduler.count, self._scheduler.family(found.shard))
        if len(parts) < 2:
            if self._suspicion.condemn(shard, "OutOfMemory", found.reason):
                return outcome
            told = refused(shard, found.reason, row=self._suspicion.place(shard))
            return Failed(outcome.shard, outcome.attempt, told)
        self._committer.divide(parts)
        self._scheduler.divide(parts)
        self._watch(ShardDivided(found.shard, len(parts)))
        return outcome

    def _holders(self) -> set[int]:
        stages = len(self._supply.busy) - 1 if self._supply is not None else 0
        return self._scheduler.holders.union(*(self._held(stage) for stage in range(stages)))

    def _held(self, stage: int) -> set[int]:
        return self._supply.holders(stage) if self._supply is not None else set()

    def _submit(self, pool: Pool, order: Order) -> None:
        if isinstance(order, Prepare):
            assert self._supply is not None
            self._prepared[order.task.shard.index] = self._supply.open(order.task, order.worker)
            return
        if isinstance(order, Begin):
            shard, attempt = order.task.shard.index, order.task.attempt
            self._blocks.pop(shard, None)  # of an attempt that was lost before their turn came
            ceilings = dict(self._committer.ceilings)
            after = self._delivered.get(shard)
            task = msgspec.structs.replace(
                self._opened(order), ceilings=ceilings, every=self._every, after=after
            )
            future = pool.submit("attempt", task, worker=order.worker)
        else:
            shard, attempt = order.shard, self._scheduler.attempt_of(order.shard)
            future = pool.submit("proceed", shard, order.schema, worker=order.worker)
        asked, clock = self._clock(), self._clock
        future.add_done_callback(lambda done: self._inbox.put((shard, attempt, done, asked, clock())))

    def _opened(self, begin: Begin) -> Task:
        """Return what the worker is told, once the stages before know of the attempt."""
        task = self._prepared.pop(begin.task.shard.index, None)
        if task is None or task.attempt != begin.task.attempt:
            task = begin.task
            task = self._supply.open(task, begin.worker) if self._supply is not None else task
        return msgspec.structs.replace(task, caution=self._suspicion.caution(task.shard.index))

    def _wait(self) -> Iterator[Outcome]:
        timeout = min(TICK, self._relief.patience, self._rest.left(self._clock()))
        timeout = GROUP if self._committer.pending else timeout
        try:
            message = self._inbox.get(timeout=timeout)
            self._quiet = 0.0
            while True:
                if isinstance(message, tuple):
                    yield self._outcome(*message)
                elif isinstance(message, Finishing):
                    self._scheduler.finishing(message.shard, message.attempt)
                elif not self._suspicion.hear(message, self._clock()) and (
                    self._makers is None or not self._makers.take(message)
                ):
                    self._allowance.hear(message)
                    self._relief.hear(message)
                    self._heed(message)
                    self._watch(message)
                if self._supply is not None and self._supply.error is not None:
                    yield Failed(-1, -1, self._supply.error)
                message = self._inbox.get_nowait()
        except queue.Empty:
            self._quiet += timeout  # unless something was heard; a little too much does no harm
            return

    def _heed(self, message: Any) -> None:
        """What did not fit into the memory of one worker, the others need not try."""
        if isinstance(message, BatchShrunk):
            known = self._committer.ceilings.get(message.step)
            if known is None or message.now < known:
                self._committer.lower(message.step, message.now)

    def _settled(self, outcome: Outcome) -> Outcome:
        """Let the stages before know of an attempt's end, and add what they did for it."""
        if self._supply is None or isinstance(outcome, (Proposal, Blocks)):
            return outcome
        if self._scheduler.attempt_of(outcome.shard) == outcome.attempt:
            outcome = self._supply.completed(outcome) if isinstance(outcome, Done) else outcome
        self._supply.close(outcome.shard, outcome.attempt)
        return outcome

    def _checked(self, outcome: Outcome) -> Outcome:
        """End the run rather than commit a shard whose rows are not all accounted for."""
        if self._accounts is None or not isinstance(outcome, Done):
            return outcome
        if self._scheduler.attempt_of(outcome.shard) != outcome.attempt:
            return outcome
        shard = self._scheduler.shard_of(outcome.shard)
        if outcome.rest is not None:
            shard = parted(shard, outcome.rest, self._scheduler.count)[0]
        wrong = self._accounts.check(shard, outcome)
        return outcome if wrong is None else Failed(outcome.shard, outcome.attempt, wrong)

    def _outcome(
        self, shard: int, attempt: int, future: Future[Any], asked: float, answered: float
    ) -> Outcome:
        error = future.exception()
        worker = getattr(future, "worker", -1)
        seconds = self._spans.seconds(self._last, worker, asked, answered)
        self._watch(_worked(self._last, worker, shard, attempt, seconds, error or future.result()))
        if error is None:
            outcome: Outcome = future.result()
            if isinstance(outcome, Done):
                self._relief.worked(worker)
            return outcome
        if isinstance(error, WorkerDied):
            reason = str(error)
            self._watch(WorkerLost(worker, reason))
            at_work = self._scheduler.was_at(worker) == shard
            blame = blame_for(error, shard, worker, self._relief, self._suspicion, at_work=at_work)
            if isinstance(blame, ErrorReport):
                return Failed(shard, attempt, blame)
            self._watch(ShardRetried(shard, attempt + 1, reason))
            return Lost(shard, attempt, reason, blame=blame)
        return Failed(shard, attempt, failures.of_a_call(error))

    # ------------------------------------------------------------ output for a reader

    def _keep(self, outcome: Outcome) -> None:
        if isinstance(outcome, Blocks) and self._scheduler.attempt_of(outcome.shard) == outcome.attempt:
            self._blocks.setdefault(outcome.shard, []).append(outcome)

    def _deliver(self) -> Iterator[pa.RecordBatch]:
        """Hand over the blocks whose turn it is; what of an attempt anew the reader has is left out by its worker."""
        if not self._blocks:
            return
        for shard in sorted(self._blocks):
            if shard > self._scheduler.head:
                return
            for block in self._blocks.pop(shard):
                if block.until is not None:
                    self._delivered[shard] = block.until
                yield from from_ipc(block.data)


def _worked(stage: int, worker: int, shard: int, attempt: int, seconds: float, what: Any) -> Worked:
    """Say what a call for an attempt was: its outcome, or the error that it ended in."""
    if isinstance(what, Done):
        return Worked(stage, worker, shard, attempt, seconds, "done", what.ledger.read, what.timings)
    if isinstance(what, WorkerDied):
        return Worked(stage, worker, shard, attempt, seconds, "lost")
    if isinstance(what, (Failed, BaseException)):
        return Worked(stage, worker, shard, attempt, seconds, "failed")
    return Worked(
        stage, worker, shard, attempt, seconds, "put off" if isinstance(what, Deferred) else "going on"
    )
