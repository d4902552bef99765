"""Which task of which stage begins or goes on next, and on which worker. No I/O, no thread, no clock.

The scheduler owns all state about shards that are not yet committed. The loop asks ``ready`` for orders, carries them
out, and passes what came of them to ``complete``. Attempts at shards, which the last stage carries out, are decided
here; the tasks of the stages before it, which make blocks for these attempts, in ``blocks``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from headrace.core.work import (
    AttemptLost,
    CommitRecord,
    Deferred,
    Done,
    ErrorReport,
    Failed,
    Outcome,
    Pause,
    Proposal,
    Shard,
    Task,
)
from headrace.driver.block_tasks import BlockTasks, ends_its_workers
from headrace.driver.ports import Begin, Order, Proceed
from headrace.driver.shards import Merge, SchemaSettlement, ShardTable, Unite

MOST_DECODED = 3  # shards that turn out not to be copied: after so many, the stages before read all columns


class _Attempt(msgspec.Struct):
    """An open attempt. ``paused``: it waits for ``Proceed``; ``prepared``: it is not begun yet."""

    worker: int
    number: int
    paused: bool = False
    finishing: bool = False
    prepared: Task | None = None


class Scheduler:
    """Decides the order of work for one plan.

    ``done`` says which shards were committed before. With ``limits`` (the rows that the plan's ``limit`` steps still
    let pass) or ``ordered``, shards are committed in their order. ``reading`` marks a run whose blocks go to a reader
    in the order of shards. Each worker has up to ``ahead`` attempts at a time; the stages before the last make the
    ``blocks`` that they need. What a reader needs next never waits behind a later shard, so a later one is only
    prepared: its blocks are made. ``union``: the number of the dataset of each shard, where their
    schemas are one in the end, and what makes one of them. ``expects``: further shards will come, by ``extend``.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        merge: Merge,
        done: bytearray | None = None,
        schema: bytes | None = None,
        revision: int = 0,
        limits: Sequence[int] = (),
        ordered: bool = False,
        reading: bool = False,
        max_attempts: int = 3,
        ahead: int = 2,
        blocks: BlockTasks | None = None,
        union: tuple[Sequence[int], Unite] | None = None,
        expects: bool = False,
    ) -> None:
        self._shards = ShardTable(shards, done)
        self._settlement = SchemaSettlement(merge, schema, self._shards, *(union or ()))
        self._asked: set[int] = set()  # shards that were begun before others, for their schema
        self.retries = 0
        self.error: ErrorReport | None = None
        self._revision = revision
        self._limits = list(limits)  # rows that may still pass
        self._passed = [0] * len(limits)  # each limit, of the rows of shards that this driver committed:
        self._read = 0
        self._ordered = ordered or bool(limits) or reading
        self._reading = reading
        self._max_attempts = max_attempts
        self._ahead = ahead
        self.blocks = blocks if blocks is not None else BlockTasks()
        self.last_stage = self.blocks.stages
        self._next = 0  # the first shard that was never begun
        self._retry_heap: list[int] = []  # shards to begin again
        self._open: dict[int, _Attempt] = {}  # by shard
        self._stopped: set[int] = set()  # shards whose attempt is paused or prepared, or was
        self._attempts: dict[int, int] = {}  # by shard: how many were begun
        self._deaths: dict[int, int] = {}  # by shard: those that it is charged with
        self._decoded: set[int] = set()  # shards of which columns could not be copied
        self._charged: set[int] = set()  # dead workers whose death is charged already, or never will be
        self._shard_at_death: dict[int, int | None] = {}  # by dead worker
        self._uncommitted: dict[int, Done] = {}  # by shard: those that wait for the shards before them
        self.stopped = False
        self.expects = expects
        if any(limit == 0 for limit in self._limits):
            self._close()

    # ------------------------------------------------------------ state

    @property
    def schema(self) -> bytes | None:
        """The settled output schema."""
        return self._settlement.schema

    @schema.setter
    def schema(self, agreed: bytes) -> None:
        self._settlement.schema = agreed

    @property
    def empty_schema(self) -> bytes | None:
        """The output schema as a shard without rows has it."""
        return self._settlement.so_far

    @property
    def finished(self) -> bool:
        """True once nothing is left to do, or the run was stopped, or an error ended it."""
        nothing_left = self._shards.left == 0 and not self.expects
        return self.error is not None or self.stopped or nothing_left

    def stop(self) -> None:
        """Begin nothing more, and wait for nothing."""
        self.stopped = True

    @property
    def head(self) -> int:
        """The first shard that is not yet committed."""
        return self._shards.head

    @property
    def idle(self) -> bool:
        """True when no attempt is open and no shard will come: if none is ready either, the run would never end."""
        return not self._open and not self.expects

    def open_workers(self, stage: int) -> set[int]:
        """Return the workers of a stage that have begun something and not ended it, even if it is paused."""
        if stage < self.last_stage:
            return self.blocks.open_workers(stage)
        return {attempt.worker for attempt in self._open.values()}

    @property
    def at_work(self) -> dict[int, tuple[int, int]]:
        """The shard and the attempt that each worker is at, unless that is paused or only closes its part."""
        found: dict[int, tuple[int, int]] = {}
        for shard, attempt in self._open.items():
            if not attempt.paused and not attempt.finishing and attempt.prepared is None:
                found.setdefault(attempt.worker, (shard, attempt.number))
        return found

    def tasks_waiting(self, stage: int) -> int:
        """Return how many shards, or tasks of an earlier stage, wait for a worker."""
        if stage < self.last_stage:
            return self.blocks.tasks_waiting(stage)
        return 0 if self._has_enough else max(0, self._shards.left - len(self._open) - len(self._uncommitted))

    @property
    def count(self) -> int:
        """The number of shards."""
        return len(self._shards)

    @property
    def dividable(self) -> bool:
        """True if shards may be divided: they need not be committed in their order."""
        return not self._ordered

    def shard_of(self, shard: int) -> Shard:
        """Return the shard of a number."""
        return self._shards[shard]

    def family(self, shard: int) -> set[tuple[int, ...]]:
        """Return the places of all parts of the planned shard that a shard is, or is a part of."""
        return self._shards.family(shard)

    def divide(self, parts: Sequence[Shard]) -> None:
        """Replace a shard that is not committed by parts: the first has its number, the others new ones.

        An open attempt at it counts as one at the first part.
        """
        self._shards.divide(parts)

    def extend(self, shards: Sequence[Shard]) -> None:
        """Take in further shards, whose numbers follow the last one; none: no more will come."""
        self._shards.extend(shards)
        self.expects = self.expects and bool(shards)

    def attempt_of(self, shard: int) -> int:
        """Return the number of the open attempt at ``shard``, or -1."""
        return self._open[shard].number if shard in self._open else -1

    def is_current(self, outcome: Outcome) -> bool:
        """Say whether an outcome is of the attempt that is open at its shard."""
        return self.attempt_of(outcome.shard) == outcome.attempt

    # ------------------------------------------------------------ orders

    def ready(
        self,
        loads: Sequence[Mapping[int, int]],
        *,
        begin_ahead: bool = True,
        begin: bool = True,
        needed_only: bool = False,
    ) -> list[Order]:
        """Return the orders to carry out now.

        ``loads`` has, for each stage, the number of unanswered calls of each live worker. Without ``begin_ahead`` no
        attempt is begun behind another, and without ``begin`` none at all. ``needed_only``: the earlier stages only
        make the blocks that attempts wait for.
        """
        *earlier, last = loads
        orders = self._attempts_ready(last, begin_ahead=begin_ahead, begin=begin)
        return orders + self.blocks.ready(earlier, needed_only=needed_only)

    def _attempts_ready(self, loads: Mapping[int, int], *, begin_ahead: bool, begin: bool) -> list[Order]:
        self._remove_dead(loads)
        if self.finished:
            return []
        load = dict(loads)
        if not begin:
            return self._proceed(load)
        orders = [*self._proceed(load), *self._begin_prepared(load, loads)]
        if self._retry_heap and self._retry_heap[0] <= self._awaited:
            # Every worker has rows that wait for this shard's: one of them makes room for it.
            idle = [
                worker for worker in sorted(load, key=lambda each: (load[each], each)) if not loads[worker]
            ]
            for worker in idle[:1]:
                load[worker] += 1
                orders += self._begin(heapq.heappop(self._retry_heap), worker)
        self._begin_new(load, orders, begin_ahead=begin_ahead)
        return orders

    def _proceed(self, load: dict[int, int]) -> list[Order]:
        """Let paused attempts go on that can; their workers count as having a call more."""
        orders: list[Order] = []
        for shard, attempt in self._stopped_attempts():
            if not attempt.paused:
                continue
            if self.schema is not None and (not self._reading or shard == self.head):
                attempt.paused = False
                orders.append(Proceed(self.last_stage, attempt.worker, shard, attempt.number, self.schema))
            load[attempt.worker] = load.get(attempt.worker, 0) + 1
        return orders

    def _begin_prepared(self, load: dict[int, int], calls: Mapping[int, int]) -> list[Order]:
        """Begin prepared attempts whose worker is free, or only has attempts that wait for this one."""
        orders: list[Order] = []
        for shard, attempt in self._stopped_attempts():
            if attempt.prepared is None:
                continue
            load[attempt.worker] += 1
            if load[attempt.worker] == 1 or (shard <= self._awaited and not calls[attempt.worker]):
                orders.append(Begin(self.last_stage, attempt.worker, attempt.prepared))
                attempt.prepared = None
        return orders

    def _begin_new(self, load: dict[int, int], orders: list[Order], *, begin_ahead: bool) -> None:
        """Begin shards on workers that have room for them: each gets one before any gets another."""
        alone = (self._reading and not self.last_stage) or bool(self._limits) or self.schema is None
        depth = self._ahead if begin_ahead and not alone else 1
        workers = sorted(load)
        for level in range(depth):
            if level and not self.last_stage and self._shards.left - len(self._open) <= 2 * len(load):
                return  # near the end, a shard that waits behind another may delay the end of the run
            for worker in workers:
                if load[worker] != level:
                    continue
                if level and self._retry_heap and self._retry_heap[0] <= self._awaited:
                    return
                shard = self._next_shard()
                if shard is None:
                    return
                load[worker] += 1
                orders += self._begin(shard, worker, prepare=self._reading and level > 0)

    def _begin(self, shard: int, worker: int, *, prepare: bool = False) -> list[Order]:
        """Begin an attempt; ``prepare``: only have its blocks made, until the worker is free for it."""
        number = self._attempts.get(shard, 0)
        self._attempts[shard] = number + 1
        decodes = shard in self._decoded or len(self._decoded) >= MOST_DECODED
        task = Task(
            self._shards[shard],
            number,
            self.schema,
            tuple(self._limits),
            asks_schema=self._settlement.asks,
            decodes=decodes,
        )
        task = self.blocks.open(task, worker)
        self._open[shard] = _Attempt(worker, number, prepared=task if prepare else None)
        if prepare:
            self._stopped.add(shard)
        return [] if prepare else [Begin(self.last_stage, worker, task)]

    def _next_shard(self) -> int | None:
        """Return the shard to begin next, if there is one."""
        if self._one_by_one:
            if self._open:
                return None
            if self.schema is None and self._settlement.is_deferred(self.head):
                return self._settlement.probe  # it is asked for its schema only
            return self.head
        if self._retry_heap:
            return heapq.heappop(self._retry_heap)
        if self._settlement.asks:
            wanted = self._settlement.wanted(self._asked)
            if wanted is not None:
                self._asked.add(wanted)
            return wanted
        if self._has_enough:
            return None
        while self._next < len(self._shards) and (
            self._shards.is_committed(self._next) or self._next in self._asked
        ):
            self._next += 1
        if self._next == len(self._shards):
            return None
        self._next += 1
        return self._next - 1

    @property
    def _has_enough(self) -> bool:
        """True if a limit will be reached by the shards that were begun, if of their rows as many pass as so far."""
        rows = [self._shards[shard].rows for shard in self._open]
        if not self._limits or min(rows, default=0) < 0:
            return False
        for i, left in enumerate(self._limits):
            passed = sum(done.passed[i] for done in self._uncommitted.values())
            share = self._passed[i] / self._read if self._read else 1.0
            if passed + sum(rows) * share >= left:
                return True
        return False

    @property
    def _one_by_one(self) -> bool:
        """True if limits must be exact, since rows that a reader has cannot be taken back."""
        return self._reading and bool(self._limits)

    @property
    def _awaited(self) -> int:
        """The shard that paused attempts may wait for: it settles the schema, or is the next that a reader gets."""
        if self._one_by_one:
            return -1
        if self.schema is None:
            return self._settlement.probe
        return self.head if self._reading else -1

    def _stopped_attempts(self) -> list[tuple[int, _Attempt]]:
        """Return the attempts that are paused or prepared: few of the thousands that may be open."""
        found = [(shard, self._open[shard]) for shard in sorted(self._stopped) if shard in self._open]
        found = [(shard, each) for shard, each in found if each.paused or each.prepared is not None]
        self._stopped = {shard for shard, _ in found}
        return found

    # ------------------------------------------------------------ outcomes

    def with_all_stages(self, outcome: Outcome) -> Outcome:
        """Return the outcome of an attempt with what the stages before did for it; they do no more once it ended."""
        return outcome if isinstance(outcome, Pause) else self.blocks.ended(outcome)

    def complete_block(self, task: int, outcome: Outcome | None) -> None:
        """Record what came of a call for a task of a stage before the last; None: it had ended before."""
        self.blocks.complete(task, outcome)
        self.error = self.error or self.blocks.error

    def complete(self, outcome: Outcome) -> list[CommitRecord]:
        """Record what came of an attempt; return the records to commit now, in order."""
        if isinstance(outcome, Failed) and outcome.shard < 0:
            self.error = outcome.error  # of the whole run, or of an earlier stage
            return []
        attempt = self._open.get(outcome.shard)
        if attempt is None or attempt.number != outcome.attempt:
            return []  # of an attempt that was given up: its files keep their staged names
        if isinstance(outcome, Failed):
            self.error = outcome.error
            return []
        if isinstance(outcome, Pause):
            self._pause(outcome, attempt)
            return []
        del self._open[outcome.shard]
        if isinstance(outcome, AttemptLost) and outcome.decodes:
            self._decoded.add(outcome.shard)
            heapq.heappush(self._retry_heap, outcome.shard)
            return []
        if isinstance(outcome, AttemptLost):
            # Calls of a worker that died fail in their order: the first was at work, the others only waited.
            charged = outcome.charged and attempt.worker not in self._charged
            if outcome.charged:
                self._charged.add(attempt.worker)
            self._retry(outcome.shard, outcome.reason, charged=charged)
            return []
        if isinstance(outcome, Deferred):
            self._settlement.defer(outcome.shard, outcome.schema)
            self._retry_released()
            return []
        return self._finish(outcome)

    def _pause(self, outcome: Pause, attempt: _Attempt) -> None:
        attempt.paused = True
        self._stopped.add(outcome.shard)
        if isinstance(outcome, Proposal):
            self._settlement.propose(outcome.shard, outcome.schema, final=outcome.last)
            self._retry_released()
            if self._one_by_one and outcome.shard != self.head:
                del self._open[outcome.shard]

    def finishing(self, shard: int, attempt: int) -> None:
        """An attempt has nothing left to do but to close its part."""
        if self.attempt_of(shard) == attempt:
            self._open[shard].finishing = True

    def _finish(self, done: Done) -> list[CommitRecord]:
        if not done.ledger.written:
            self._settlement.skip(done.shard, done.schema)
            self._retry_released()
        if not self._ordered:
            return [self._commit(done)]
        self._uncommitted[done.shard] = done
        records = []
        while self.head in self._uncommitted and not self.finished:
            next_ = self._uncommitted.pop(self.head)
            if any(passed > left for passed, left in zip(next_.passed, self._limits, strict=True)):
                heapq.heappush(self._retry_heap, next_.shard)  # earlier shards used its budget up
                break
            self._limits = [left - passed for passed, left in zip(next_.passed, self._limits, strict=True)]
            self._passed = [sum(each) for each in zip(next_.passed, self._passed, strict=True)]
            self._read += next_.ledger.read
            records.append(self._commit(next_))
            if any(left == 0 for left in self._limits):
                self._close()
        return records

    def _commit(self, done: Done) -> CommitRecord:
        self._shards.commit(done.shard)
        self._attempts.pop(done.shard, None)
        self._deaths.pop(done.shard, None)
        return CommitRecord(
            done.shard,
            done.attempt,
            self._revision,
            done.files,
            done.ledger,
            done.timings,
            done.passed,
            done.states,
            done.faults,
        )

    def _close(self) -> None:
        """A limit is used up: later shards are not read."""
        self._shards.close()
        self._open.clear()
        self._uncommitted.clear()

    def _retry_released(self) -> None:
        for shard in self._settlement.released():
            heapq.heappush(self._retry_heap, shard)

    # ------------------------------------------------------------ deaths

    def never_charge(self, worker: int) -> None:
        """A worker is about to end, and no shard is the cause."""
        self._charged.add(worker)

    def shard_at_death(self, worker: int) -> int | None:
        """Return the shard that a worker was at when it died: the first whose rows were not all through."""
        if worker not in self._shard_at_death:
            begun = [
                (attempt.finishing, place, shard)
                for place, (shard, attempt) in enumerate(self._open.items())
                if attempt.worker == worker and not attempt.paused and attempt.prepared is None
            ]
            self._shard_at_death[worker] = min(begun)[2] if begun else None
        return self._shard_at_death[worker]

    def _remove_dead(self, loads: Mapping[int, int]) -> None:
        """Retry the paused attempts whose worker died: no call of theirs failed."""
        for shard, attempt in self._stopped_attempts():
            if attempt.worker not in loads:
                alone = attempt.worker not in self._charged and self.shard_at_death(attempt.worker) is None
                charged = attempt.paused and alone
                del self._open[shard]
                self._retry(shard, "the worker ended while it waited", charged=charged)

    def _retry(self, shard: int, reason: str, *, charged: bool = True) -> None:
        deaths = self._deaths[shard] = self._deaths.get(shard, 0) + charged
        if deaths >= self._max_attempts:
            self.error = ends_its_workers(f"Shard {shard}", deaths, reason)
            return
        self.retries += 1
        heapq.heappush(self._retry_heap, shard)
