"""Who does what next. Pure decisions: no I/O, no thread, no clock.

The scheduler owns all state about shards that are not yet committed. The runner asks ``ready`` for orders,
carries them out, and tells it with ``complete`` what came back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millrace.core.work import (
    Blocks,
    CommitRecord,
    Deferred,
    Done,
    ErrorReport,
    Failed,
    Lost,
    Outcome,
    Proposal,
    Shard,
    Task,
)

# Merges schema proposals in shard order; the flag says that no column's type is open any more.
Merge = Callable[[bytes | None, bytes], tuple[bytes, bool]]


@dataclass(frozen=True, slots=True)
class Begin:
    """Start an attempt on a worker."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the stages before make what an attempt will need; ``Begin`` comes when the worker is free for it."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Proceed:
    """Let a waiting attempt go on, with the schema that was settled meanwhile."""

    worker: int
    shard: int
    schema: bytes | None


Order = Begin | Prepare | Proceed


@dataclass(slots=True)
class _Open:
    """An attempt under way."""

    worker: int
    attempt: int
    paused: bool = False
    finishing: bool = False
    prepared: Task | None = None  # not begun yet


class Scheduler:
    """Decides the order of work for one plan.

    ``done`` says which shards were committed before. With ``limits`` (the budgets of the plan's ``limit``
    steps, less what committed shards used) or ``ordered``, shards are committed in their order. ``reading``
    marks a run whose blocks go to a reader in shard order. Each worker has up to ``ahead`` attempts before it;
    ``fed``: stages before this one make what they need, and may begin with it. A reader's next rows never wait
    behind those of a later shard, so what comes ahead of its turn is only prepared.
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
        fed: bool = False,
    ) -> None:
        self._shards = list(shards)
        self._merge = merge
        self._done = done if done is not None else bytearray(len(shards))
        self._left = len(shards) - sum(self._done)
        self.schema = schema
        self.empty_schema: bytes | None = None
        self.retries = 0
        self.error: ErrorReport | None = None
        self._revision = revision
        self._remaining = list(limits)
        self._ordered = ordered or bool(limits) or reading
        self._reading = reading
        self._max_attempts = max_attempts
        self._ahead = ahead
        self._fed = fed
        self._next = 0  # the first shard that was never begun
        self._again: list[int] = []  # a heap of shards to begin once more
        self._open: dict[int, _Open] = {}
        self._resting: set[int] = set()  # open, and paused or prepared; some that are not any more, too
        self._attempts: dict[int, int] = {}
        self._deaths: dict[int, int] = {}
        self._dead: set[int] = set()  # workers whose death was charged to the shard that they were at
        self._culprits: dict[int, int | None] = {}  # the shards that dead workers were at
        self._held: dict[int, Done] = {}
        self._head = 0  # the first shard that is not committed
        self._probe = 0  # the first shard about whose schema nothing is known
        self._merged: bytes | None = None
        self._proposals: dict[int, bytes] = {}
        self._last: set[int] = set()  # shards that propose all that there will be
        self._deferred: list[int] = []
        self._families: dict[int, set[tuple[int, ...]]] = {}  # places of the parts of divided shards
        for shard in self._shards:
            if shard.name:
                self._note_places(shard)
        if any(limit == 0 for limit in self._remaining):
            self._close()
        self._advance()

    # ------------------------------------------------------------ what the runner asks

    @property
    def finished(self) -> bool:
        """True once nothing is left to do, or an error ended the run."""
        return self.error is not None or self._left == 0

    @property
    def head(self) -> int:
        """The first shard that is not yet committed."""
        return self._head

    @property
    def idle(self) -> bool:
        """True when no attempt is under way: with nothing ready, the run could never end."""
        return not self._open

    @property
    def holders(self) -> set[int]:
        """The workers that have an attempt under way, be it at rest."""
        return {attempt.worker for attempt in self._open.values()}

    @property
    def waiting(self) -> int:
        """How many shards nobody has begun."""
        return max(0, self._left - len(self._open) - len(self._held))

    def ready(self, loads: Mapping[int, int], *, ahead: bool = True) -> list[Order]:
        """Return the orders to carry out now; ``loads`` counts the unanswered calls of each live worker.

        Without ``ahead`` no attempt is begun behind another.
        """
        self._bury(loads)
        orders: list[Order] = []
        if self.finished:
            return orders
        load = dict(loads)
        for shard, attempt in self._at_rest():
            if not attempt.paused:
                continue
            if self._may_proceed(shard):
                attempt.paused = False
                orders.append(Proceed(attempt.worker, shard, self.schema))
            load[attempt.worker] = load.get(attempt.worker, 0) + 1
        orders += self._prepared(load, loads)
        if self._again and self._again[0] <= self._awaited:
            # Every worker holds rows that wait for this shard's: one of them makes room for it.
            free = sorted(load, key=lambda worker: (load[worker], worker))
            for worker in [worker for worker in free if not loads[worker]][:1]:
                load[worker] += 1
                orders.append(self._begin(heapq.heappop(self._again), worker))
        alone = (self._reading and not self._fed) or bool(self._remaining) or self.schema is None
        depth = self._ahead if ahead and not alone else 1
        workers = sorted(load)
        for level in range(depth):
            if level and not self._fed and self._left - len(self._open) <= 2 * len(load):
                break  # near the end, a shard that waits behind another may keep the run waiting
            for worker in workers:
                if load[worker] != level:
                    continue
                if level and self._again and self._again[0] <= self._awaited:
                    return orders
                shard_ = self._take()
                if shard_ is None:
                    return orders
                load[worker] += 1
                orders.append(self._begin(shard_, worker, prepare=self._reading and level > 0))
        return orders

    def _prepared(self, load: dict[int, int], calls: Mapping[int, int]) -> list[Order]:
        """Begin what was prepared for workers that are free, or that only hold what waits for it."""
        orders: list[Order] = []
        for shard, attempt in self._at_rest():
            if attempt.prepared is None:
                continue
            load[attempt.worker] += 1
            if load[attempt.worker] == 1 or (shard <= self._awaited and not calls[attempt.worker]):
                orders.append(Begin(attempt.worker, attempt.prepared))
                attempt.prepared = None
        return orders

    def complete(self, outcome: Outcome) -> list[CommitRecord]:
        """Take what came of an attempt; return the records to commit now, in order."""
        if isinstance(outcome, Failed) and outcome.shard < 0:
            self.error = outcome.error  # of a stage before
            return []
        attempt = self._open.get(outcome.shard)
        if attempt is None or attempt.attempt != outcome.attempt:
            return []  # an attempt that was given up speaks: its files stay under staging names
        if isinstance(outcome, Failed):
            self.error = outcome.error
            return []
        if isinstance(outcome, (Proposal, Blocks)):
            attempt.paused = True
            self._resting.add(outcome.shard)
            if isinstance(outcome, Proposal):
                if outcome.last:
                    self._last.add(outcome.shard)
                self._propose(outcome.shard, outcome.schema)
                if self._one_by_one and outcome.shard != self._head:
                    del self._open[outcome.shard]
            return []
        del self._open[outcome.shard]
        if isinstance(outcome, Lost):
            # Calls of a worker that died fail in their order: the first was at work, the others only waited.
            charged = outcome.blame and attempt.worker not in self._dead
            if outcome.blame:
                self._dead.add(attempt.worker)
            self._retry(outcome.shard, outcome.reason, charged=charged)
            return []
        if isinstance(outcome, Deferred):
            self._deferred.append(outcome.shard)
            self._propose(outcome.shard, outcome.schema)
            return []
        return self._finish(outcome)

    def shard_of(self, shard: int) -> Shard:
        """Return the shard of a number."""
        return self._shards[shard]

    @property
    def count(self) -> int:
        """How many shards there are."""
        return len(self._shards)

    @property
    def dividable(self) -> bool:
        """True if a shard may be done in parts: nobody waits for shards in their order."""
        return not self._ordered

    def divide(self, parts: Sequence[Shard]) -> None:
        """Have a shard that is not done yet done in parts: the first has its number, the others new ones.

        An attempt that is under way may be at the first part already.
        """
        first, *others = parts
        self._families.get(first.place[0], set()).discard(self._shards[first.index].place)
        self._shards[first.index] = first
        self._shards += others
        for part in parts:
            self._note_places(part)
        self._done.extend(bytes(len(others)))
        self._left += len(others)

    def family(self, shard: int) -> set[tuple[int, ...]]:
        """Return the places of all parts of the planned shard that a shard is, or is a part of."""
        return self._families.get(self._shards[shard].place[0], set())

    def _note_places(self, part: Shard) -> None:
        number = part.place[0]
        family = self._families.setdefault(number, set())
        if not self._shards[number].name:
            family.add((number,))
        family.add(part.place)

    def excuse(self, worker: int) -> None:
        """A worker is about to end, and no shard is to blame."""
        self._dead.add(worker)

    def attempt_of(self, shard: int) -> int:
        """Return the number of the attempt under way at ``shard``, or -1."""
        return self._open[shard].attempt if shard in self._open else -1

    def finishing(self, shard: int, attempt: int) -> None:
        """An attempt has nothing to do any more but to end its part."""
        if self.attempt_of(shard) == attempt:
            self._open[shard].finishing = True

    def was_at(self, worker: int) -> int | None:
        """Return the shard that a worker was at when it died: the first whose rows were not all through."""
        if worker not in self._culprits:
            mine = [
                (attempt.finishing, place, shard)
                for place, (shard, attempt) in enumerate(self._open.items())
                if attempt.worker == worker and not attempt.paused and attempt.prepared is None
            ]
            self._culprits[worker] = min(mine)[2] if mine else None
        return self._culprits[worker]

    # ------------------------------------------------------------ beginning and ending attempts

    def _begin(self, shard: int, worker: int, *, prepare: bool = False) -> Begin | Prepare:
        attempt = self._attempts.get(shard, 0)
        self._attempts[shard] = attempt + 1
        task = Task(self._shards[shard], attempt, self.schema, tuple(self._remaining))
        self._open[shard] = _Open(worker, attempt, prepared=task if prepare else None)
        if prepare:
            self._resting.add(shard)
        return Prepare(worker, task) if prepare else Begin(worker, task)

    def _take(self) -> int | None:
        if self._one_by_one:
            return self._take_in_turn()
        if self._again:
            return heapq.heappop(self._again)
        while self._next < len(self._shards) and self._done[self._next]:
            self._next += 1
        if self._next == len(self._shards):
            return None
        self._next += 1
        return self._next - 1

    @property
    def _one_by_one(self) -> bool:
        """What a reader was handed cannot be taken back: with limits, budgets must be exact."""
        return self._reading and bool(self._remaining)

    @property
    def _awaited(self) -> int:
        """The shard that attempts at rest may wait for: with its rows the schema is settled, or a reader goes on."""
        if self._one_by_one:
            return -1
        if self.schema is None:
            return self._probe
        return self._head if self._reading else -1

    def _take_in_turn(self) -> int | None:
        if self._open:
            return None
        if self.schema is None and self._head in self._deferred:
            return self._probe  # it is asked for its schema only
        return self._head

    def _may_proceed(self, shard: int) -> bool:
        if self.schema is None:
            return False
        return not self._reading or shard == self._head

    def _bury(self, loads: Mapping[int, int]) -> None:
        """A worker that died while its attempt waited had no call that could tell."""
        for shard, attempt in self._at_rest():
            if attempt.worker not in loads:
                alone = attempt.worker not in self._dead and self.was_at(attempt.worker) is None
                charged = attempt.paused and alone
                del self._open[shard]
                self._retry(shard, "the worker ended while the attempt waited", charged=charged)

    def _at_rest(self) -> list[tuple[int, _Open]]:
        """Return the attempts that are paused or prepared: few of the thousands that may be open."""
        found = [(shard, self._open[shard]) for shard in sorted(self._resting) if shard in self._open]
        found = [(shard, each) for shard, each in found if each.paused or each.prepared is not None]
        self._resting = {shard for shard, _ in found}
        return found

    def _retry(self, shard: int, reason: str, *, charged: bool = True) -> None:
        deaths = self._deaths[shard] = self._deaths.get(shard, 0) + charged
        if deaths >= self._max_attempts:
            self.error = ErrorReport(
                "ShardFailed",
                f"Shard {shard} ended its worker {deaths} times, the last time so: {reason}. Something in its "
                "rows or in the function brings the process down (a crash in native code, or too little "
                "memory). Committed shards are kept: mend the function or the input, then run again.",
            )
            return
        self.retries += 1
        heapq.heappush(self._again, shard)

    def _finish(self, done: Done) -> list[CommitRecord]:
        if self.schema is None and not done.ledger.written and done.shard >= self._probe:
            self._proposals[done.shard] = b""
            if self.empty_schema is None:
                self.empty_schema = done.schema
            self._settle()
        if not self._ordered:
            return [self._commit(done)]
        self._held[done.shard] = done
        records = []
        while self._head in self._held and not self.finished:
            held = self._held.pop(self._head)
            if any(passed > left for passed, left in zip(held.passed, self._remaining, strict=True)):
                heapq.heappush(self._again, held.shard)  # it ran with a budget that earlier shards used up
                break
            self._remaining = [
                left - passed for passed, left in zip(held.passed, self._remaining, strict=True)
            ]
            records.append(self._commit(held))
            if any(left == 0 for left in self._remaining):
                self._close()
        return records

    def _commit(self, done: Done) -> CommitRecord:
        self._done[done.shard] = 1
        self._left -= 1
        self._attempts.pop(done.shard, None)
        self._deaths.pop(done.shard, None)
        self._advance()
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

    def _advance(self) -> None:
        while self._head < len(self._shards) and self._done[self._head]:
            self._head += 1

    def _close(self) -> None:
        """A limit is used up: later shards are not read."""
        self._left = 0
        self._open.clear()
        self._held.clear()

    # ------------------------------------------------------------ the output schema

    def _propose(self, shard: int, schema: bytes) -> None:
        if self.schema is not None:
            self._release()
        elif shard >= self._probe:
            self._proposals[shard] = schema
            self._settle()

    def _settle(self) -> None:
        """The first rows in shard order settle the schema; what they leave open, the next ones fill."""
        complete = False
        while self.schema is None and not complete and self._probe < len(self._shards):
            schema = self._proposals.pop(self._probe, None)
            if schema is None and not self._done[self._probe]:
                return
            self._probe += 1
            if schema:
                self._merged, complete = self._merge(self._merged, schema)
                complete = complete or self._probe - 1 in self._last
        if self.schema is None and self._merged is not None:
            self.schema = self._merged
            self._release()

    def _release(self) -> None:
        for shard in self._deferred:
            heapq.heappush(self._again, shard)
        self._deferred.clear()
