"""The scheduler against a world of workers that work, wait and die in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossed import few
from headrace.core.work import (
    AttemptLost,
    CommitRecord,
    Deferred,
    Done,
    ErrorReport,
    Failed,
    Ledger,
    Outcome,
    OutputBlocks,
    Proposal,
    Shard,
    Split,
    Task,
    Timings,
)
from headrace.driver.ports import Begin, Proceed
from headrace.driver.scheduler import MOST_DECODED, Scheduler

OPEN, WHOLE = b"?", b"S"
MAX_ATTEMPTS = 3


def merge(known: bytes | None, proposed: bytes) -> tuple[bytes, bool]:
    """Of two schemas the whole one; the flag says whether it is whole."""
    merged = WHOLE if WHOLE in (known, proposed) else OPEN
    return merged, merged == WHOLE


@dataclass(frozen=True)
class Content:
    """What is in a shard: so many rows, of which some columns may hold only nulls, in so many blocks."""

    rows: int
    nulls: bool = False
    blocks: int = 1


Conversation = Generator[Outcome, "bytes | None", None]


def attempt(task: Task, content: Content, reading: bool) -> Conversation:
    """Carry an attempt out as a worker would."""
    shard, number, schema = task.shard.index, task.attempt, task.schema
    passed, left = [], content.rows
    for budget in task.budgets:
        left = min(left, budget)
        passed.append(left)
    if left:
        if schema is None:
            if content.nulls:
                yield Deferred(shard, number, OPEN)
                return
            schema = yield Proposal(shard, number, WHOLE)
            assert schema is not None
        if reading:
            for _ in range(content.blocks):
                yield OutputBlocks(shard, number, b"")
    yield Done(
        shard, number, (), Ledger(content.rows, left), Timings(), WHOLE if not left else None, tuple(passed)
    )


@dataclass
class World:
    """A pool of workers, each with its calls in order, and what became of the scheduler's shards."""

    scheduler: Scheduler
    contents: list[Content]
    reading: bool = False
    queues: dict[int, deque[tuple[int, int, bytes | None, Task | None]]] = field(default_factory=dict)
    open: dict[int, tuple[int, int, Conversation]] = field(default_factory=dict)  # by shard
    committed: list[CommitRecord] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    stale: list[Done] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    unreported: deque[AttemptLost] = field(
        default_factory=deque
    )  # deaths that the scheduler does not know of
    started: int = 0

    def start_worker(self) -> None:
        """Start a worker."""
        self.queues[self.started] = deque()
        self.started += 1

    def order(self) -> None:
        """Carry out what the scheduler wants done now."""
        for order in self.scheduler.ready([{worker: len(queue) for worker, queue in self.queues.items()}]):
            if isinstance(order, Begin):
                shard = order.task.shard.index
                assert not any(shard == call[0] for queue in self.queues.values() for call in queue)
                given_up = self.open.pop(shard, None)
                assert given_up is None or given_up[1] < order.task.attempt
                self.begun.append(shard)
                self.queues[order.worker].append((shard, order.task.attempt, None, order.task))
            else:
                assert isinstance(order, Proceed)
                worker, number, _ = self.open[order.shard]
                assert worker == order.worker
                if self.reading:
                    assert order.shard == self.scheduler.head
                self.queues[worker].append((order.shard, number, order.schema, None))

    def work(self, worker: int) -> None:
        """Let a worker answer its first call."""
        shard, number, schema, task = self.queues[worker].popleft()
        if task is not None:
            conversation = attempt(task, self.contents[shard], self.reading)
            self.open[shard] = worker, number, conversation
            outcome = next(conversation)
        else:
            outcome = self.open[shard][2].send(schema)
        if not isinstance(outcome, (Proposal, OutputBlocks)):
            del self.open[shard]
        self.complete(outcome)

    def shards_at(self, worker: int) -> list[tuple[int, int]]:
        """Shards and attempts that a worker's death would lose."""
        queued = [(call[0], call[1]) for call in self.queues[worker]]
        waiting = [(shard, number) for shard, (at, number, _) in self.open.items() if at == worker]
        return sorted({*queued, *waiting})

    def kill(self, worker: int) -> None:
        """End a worker: its calls are lost, attempts that wait vanish without a word; another comes.

        That may be at work before the scheduler knows of the death.
        """
        lost = self.shards_at(worker)
        calls = list(self.queues.pop(worker))
        for shard, number in lost:
            self.open.pop(shard, None)
            self.deaths[shard] = self.deaths.get(shard, 0) + 1
            self.stale.append(Done(shard, number, (), Ledger(1, 1), Timings(), None, (1,)))
        self.start_worker()
        self.unreported.extend(AttemptLost(shard, number, "killed") for shard, number, _, _ in calls)

    def complete(self, outcome: Outcome) -> None:
        self.committed += self.scheduler.complete(outcome)

    def answer_late(self, late: Done) -> None:
        """A worker that was given up answers after all."""
        if self.scheduler.attempt_of(late.shard) != late.attempt:
            assert self.scheduler.complete(late) == []

    def busy(self) -> list[int]:
        return [worker for worker, queue in self.queues.items() if queue]


contents = st.builds(Content, st.integers(0, 6), st.booleans(), st.integers(1, 3))
FEW = settings(max_examples=few(32))


def play(world: World, workers: int, data: st.DataObject) -> None:
    """Let the world go its way, picked by hypothesis, to the end."""
    for _ in range(workers):
        world.start_worker()
    for _ in range(2000):
        world.order()
        if world.scheduler.finished:
            return
        busy = world.busy()
        if world.unreported and (not busy or data.draw(st.booleans(), label="reported")):
            world.complete(world.unreported.popleft())
            continue
        assert busy, "nobody works and nothing is ready: the run would never end"
        worker = data.draw(st.sampled_from(busy), label="worker")
        choice = data.draw(st.integers(0, 9), label="choice")
        victim = data.draw(st.sampled_from(sorted(world.queues)), label="victim") if choice == 0 else None
        allowed = victim is None or any(
            world.deaths.get(shard, 0) >= MAX_ATTEMPTS - 1 for shard, _ in world.shards_at(victim)
        )
        if victim is not None and not allowed:
            world.kill(victim)
        elif choice == 1 and world.stale:
            world.answer_late(data.draw(st.sampled_from(world.stale), label="late"))
        else:
            world.work(worker)
    raise AssertionError("it does not end")


def shards(count: int) -> list[Shard]:
    return [Shard(index, ()) for index in range(count)]


@FEW
@given(st.lists(st.tuples(contents, st.booleans()), max_size=12), st.integers(1, 4), st.booleans(), st.data())
def test_every_shard_is_committed_exactly_once(
    plan: list[tuple[Content, bool]], workers: int, ordered: bool, data: st.DataObject
) -> None:
    done = bytearray(was_done for _, was_done in plan)
    scheduler = Scheduler(shards(len(plan)), merge=merge, done=bytearray(done), ordered=ordered, revision=4)
    world = World(scheduler, [content for content, _ in plan])
    play(world, workers, data)
    assert scheduler.error is None
    committed = [record.shard for record in world.committed]
    assert sorted(committed) == [index for index, was_done in enumerate(done) if not was_done]
    assert all(record.revision == 4 for record in world.committed)
    assert all(record.ledger.written == world.contents[record.shard].rows for record in world.committed)
    if ordered:
        assert committed == sorted(committed)
    if any(not was_done and content.rows for content, was_done in plan):
        whole = any(content.rows and not content.nulls for content, was_done in plan if not was_done)
        assert scheduler.schema == (WHOLE if whole else OPEN)
    else:
        assert scheduler.schema is None


@FEW
@given(st.lists(contents, max_size=10), st.integers(1, 4), st.integers(0, 25), st.integers(0, 25), st.data())
def test_limits_are_exact_and_in_order(
    plan: list[Content], workers: int, first: int, second: int, data: st.DataObject
) -> None:
    planned = shards(len(plan))
    if data.draw(st.booleans(), label="the rows of shards are known; some do not pass"):
        rows = [content.rows + data.draw(st.integers(0, 9)) for content in plan]
        planned = [Shard(i, (Split(i, 0, 1, each),)) for i, each in enumerate(rows)]
    scheduler = Scheduler(planned, merge=merge, limits=[first, second])
    world = World(scheduler, plan)
    play(world, workers, data)
    total = sum(content.rows for content in plan)
    assert [record.shard for record in world.committed] == list(range(len(world.committed)))
    assert sum(record.ledger.written for record in world.committed) == min(total, first, second)
    if min(first, second) > total:
        assert len(world.committed) == len(plan)


def test_no_worker_reads_on_where_others_have_enough_for_a_limit() -> None:
    planned = [Shard(i, (Split(i, 0, 1, 100),)) for i in range(5)]
    scheduler = Scheduler(planned, merge=merge, schema=WHOLE, limits=[200])

    def begun(workers: int) -> list[int]:
        orders = scheduler.ready([dict.fromkeys(range(workers), 0)])
        return [order.task.shard.index for order in orders if isinstance(order, Begin)]

    assert begun(3) == [0, 1] and scheduler.tasks_waiting(0) == 0
    scheduler.complete(Done(0, 0, (), Ledger(100, 50), Timings(), passed=(50,)))
    assert scheduler.tasks_waiting(0) == 3  # half of the rows pass, so these two are not enough
    assert begun(3) == [2, 3]
    scheduler.complete(Done(2, 0, (), Ledger(100, 100), Timings(), passed=(100,)))
    assert begun(3) == []


@FEW
@given(
    st.lists(contents, max_size=10), st.integers(1, 4), st.one_of(st.none(), st.integers(0, 25)), st.data()
)
def test_a_reader_gets_every_shard_in_order(
    plan: list[Content], workers: int, limit: int | None, data: st.DataObject
) -> None:
    limits = [] if limit is None else [limit]
    scheduler = Scheduler(shards(len(plan)), merge=merge, limits=limits, reading=True)
    world = World(scheduler, plan, reading=True)
    play(world, workers, data)
    assert [record.shard for record in world.committed] == list(range(len(world.committed)))
    total = sum(content.rows for content in plan)
    assert sum(record.ledger.written for record in world.committed) == min(
        total, total if limit is None else limit
    )
    if limit is not None and not any(content.nulls for content in plan):  # no shard is begun in vain
        assert sorted(set(world.begun)) == [record.shard for record in world.committed]


@given(st.lists(contents, min_size=1, max_size=6), st.integers(1, 3))
def test_nothing_is_begun_after_an_error(plan: list[Content], workers: int) -> None:
    scheduler = Scheduler(shards(len(plan)), merge=merge)
    world = World(scheduler, plan)
    for _ in range(workers):
        world.start_worker()
    world.order()
    scheduler.complete(Failed(0, 0, ErrorReport("StepError", "no")))
    assert scheduler.finished and scheduler.error is not None
    assert scheduler.ready([{0: 0, 1: 0}]) == []


def test_a_shard_that_kills_its_worker_is_named() -> None:
    scheduler = Scheduler(shards(3), merge=merge, schema=WHOLE, max_attempts=MAX_ATTEMPTS)
    for number in range(MAX_ATTEMPTS):
        (begin, *_) = scheduler.ready([{number: 0}])
        assert isinstance(begin, Begin) and begin.task.shard.index == 0 and begin.task.attempt == number
        scheduler.complete(AttemptLost(0, number, "killed by SIGSEGV"))
    assert scheduler.error is not None and scheduler.error.kind == "ShardFailed"
    assert "Shard 0" in scheduler.error.message and "SIGSEGV" in scheduler.error.message


def test_an_empty_plan_is_finished_at_once() -> None:
    assert Scheduler([], merge=merge).finished
    assert Scheduler(shards(2), merge=merge, done=bytearray([1, 1])).finished
    assert Scheduler(shards(2), merge=merge, limits=[0]).finished


def test_a_finished_plan_takes_no_more() -> None:
    scheduler = Scheduler(shards(1), merge=merge, schema=WHOLE)
    scheduler.ready([{0: 0}])
    done = Done(0, 0, (), Ledger(1, 1), Timings())
    assert len(scheduler.complete(done)) == 1
    assert scheduler.complete(done) == []


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_near_end_is_not_queued_behind_other_work(workers: int) -> None:
    scheduler = Scheduler(shards(2 * workers), merge=merge, schema=WHOLE)
    orders = scheduler.ready([dict.fromkeys(range(workers), 0)])
    assert [order.worker for order in orders] == list(range(workers))


def test_a_shard_in_parts_is_done_in_parts() -> None:
    shards = [Shard(i, ()) for i in range(3)]
    world = World(
        Scheduler(shards, merge=merge, max_attempts=MAX_ATTEMPTS), [Content(i + 1) for i in range(4)]
    )
    world.start_worker()
    world.order()
    assert (
        world.scheduler.dividable
        and world.scheduler.complete(AttemptLost(0, 0, "too big", charged=False)) == []
    )
    world.queues[0].clear()
    world.scheduler.divide([Shard(0, (), "0.0"), Shard(world.scheduler.count, (), "0.1")])
    assert [world.scheduler.shard_of(i).label() for i in range(4)] == ["0.0", "1", "2", "0.1"]
    while not world.scheduler.finished:
        world.order()
        world.work(0)
    assert sorted(record.shard for record in world.committed) == [0, 1, 2, 3]


def test_a_worker_that_was_ended_for_no_fault_of_its_shards_is_charged_to_none() -> None:
    scheduler = Scheduler([Shard(0, ())], merge=merge, max_attempts=1)
    scheduler.ready([{0: 0}])
    scheduler.complete(Proposal(0, 0, OPEN))
    scheduler.never_charge(0)
    (again,) = scheduler.ready([{1: 0}])
    assert isinstance(again, Begin) and scheduler.error is None


def test_nothing_is_begun_ahead_when_memory_is_short() -> None:
    scheduler = Scheduler([Shard(i, ()) for i in range(20)], merge=merge, schema=WHOLE)
    assert len(scheduler.ready([{0: 0, 1: 0}], begin_ahead=False)) == 2
    assert len(scheduler.ready([{0: 1, 1: 1}], begin_ahead=False)) == 0
    assert len(scheduler.ready([{0: 1, 1: 1}])) == 2


@pytest.mark.parametrize("known_first", [True, False])
def test_a_shard_that_waited_is_not_charged_with_the_death_over_another(*, known_first: bool) -> None:
    scheduler = Scheduler(shards(2), merge=merge, max_attempts=1)
    scheduler.ready([{0: 0, 1: 0}])  # each worker has a shard
    scheduler.complete(Proposal(1, 0, OPEN))  # shard 1 waits for the schema of shard 0
    scheduler.complete(AttemptLost(0, 0, "killed", charged=False))
    (again,) = scheduler.ready([{1: 0}])  # where worker 1 is at it now, too
    assert (again.worker, again.task.shard.index) == (1, 0)  # type: ignore[union-attr]
    if known_first:
        assert scheduler.shard_at_death(1) == 0
        scheduler.complete(AttemptLost(0, 1, "killed", charged=False))
    begun = [order.task.shard.index for order in scheduler.ready([{2: 0, 3: 0}]) if isinstance(order, Begin)]
    assert scheduler.error is None
    assert 1 in begun


def test_shards_that_cannot_be_copied_are_begun_again_to_be_decoded_and_charged_with_nothing() -> None:
    scheduler = Scheduler([Shard(i, ()) for i in range(8)], merge=merge, schema=WHOLE, max_attempts=1)
    for number in range(MOST_DECODED):
        for decodes in (False, True):
            (order,) = scheduler.ready([{number: 0}], begin_ahead=False)
            assert isinstance(order, Begin)
            task = order.task
            assert (task.shard.index, task.attempt, task.decodes) == (number, int(decodes), decodes)
            if not decodes:
                lost = AttemptLost(number, 0, "small row groups", charged=False, decodes=True)
                assert scheduler.complete(lost) == []
    assert scheduler.error is None and scheduler.retries == 0
    later = scheduler.ready([{8: 0, 9: 0}], begin_ahead=False)
    assert [order.task.decodes for order in later if isinstance(order, Begin)] == [True, True]
