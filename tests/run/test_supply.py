"""The supply and the scheduler, driven by a world with a clock of its own: it always ends, in order, in bounds."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.core.work import (
    Block,
    BlockRef,
    Blocks,
    Done,
    Ended,
    Fault,
    Freed,
    Gone,
    Ledger,
    Lost,
    Made,
    Piece,
    Proposal,
    Reject,
    Shard,
    Split,
    Tail,
    Timings,
    Waiting,
)
from millrace.plan.cuts import extents
from millrace.run.scheduler import Begin, Prepare, Proceed, Scheduler
from millrace.run.supply import USUAL, Abort, Drop, Feed, GiveUp, Keep, Make, More, Supply

Path = tuple[int, ...]


@dataclass
class Plan:
    """What the world is like.

    Rows are paths. A stage makes ``fan(row)`` rows of one, and rejects those of which ``rejects`` says so. Blocks
    have ``cut`` rows, and a stage's pieces multiples of its ``units``.
    """

    makers: list[int]
    last: int
    shards: list[int]  # splits of each
    fan: Callable[[Path], int]
    size: Callable[[Path], int]
    make_time: Callable[[int], float]
    use_time: Callable[[], float]
    budget: int
    deaths: int = 0
    reading: bool = False
    ahead: int = 2
    keeps: int = 1  # blocks that an attempt holds on to while it waits
    rows: Callable[[int], int] = lambda split: 1
    rejects: Callable[[Path], bool] = lambda row: False
    cut: int = 1
    units: list[int] = field(default_factory=list)
    whole: bool = False


@dataclass
class Give:
    """A block to give, or the end: its rows, those rejected before it, and the counts then."""

    rows: list[Path]
    rejects: list[Path]
    counts: Ledger


@dataclass
class Worker:
    number: int
    stage: int
    calls: list[tuple[str, Any]] = field(default_factory=list)
    open: dict[int, list[Give]] = field(default_factory=dict)  # by piece: what it will give
    troughs: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    at: tuple[int, int] | None = None  # the attempt at work
    holds: list[int] = field(default_factory=list)
    taken: dict[tuple[int, int], list[Block | Tail]] = field(default_factory=dict)  # by attempt
    busy: float = 0.0
    running: bool = False
    waits: bool = False  # for the next block of the attempt at work


class World:
    """Runs a plan as the runner would, with workers that take their time and now and then die."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan, self.now, self.random = plan, 0.0, random.Random(seed)
        self.numbers, self.ids = itertools.count(1), itertools.count(1)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.workers: dict[int, Worker] = {}
        for stage, count in enumerate([*plan.makers, plan.last]):
            for _ in range(count):
                self.hire(stage)
        splits = iter([Split(n, 0, 1, plan.rows(n)) for n in range(sum(plan.shards))])
        self.shards = [
            Shard(i, tuple(itertools.islice(splits, count))) for i, count in enumerate(plan.shards)
        ]
        self.scheduler = Scheduler(
            self.shards,
            merge=lambda a, b: (b, True),
            reading=plan.reading,
            max_attempts=10**6,
            ahead=plan.ahead,
            fed=True,
        )
        stages = len(plan.makers)
        plan.units = plan.units or [0] * stages
        self.supply = Supply(
            [1] * stages,
            [()] * stages,
            budget=plan.budget,
            max_attempts=10**6,
            units=plan.units,
            pieces=lambda shard: extents(shard.splits, plan.units[0], whole=plan.whole),
        )
        self.lives: dict[int, int] = {}  # blocks that exist: size
        self.due: dict[int, int] = {}  # by block: how often it will still be lent
        self.readers: dict[int, int] = {}  # by block: how many look at it
        self.rows: dict[int, list[Path]] = {}  # of every block there ever was
        self.finished: dict[int, list[Path]] = {}
        self.rejected: dict[int, list[Path]] = {}
        self.known: dict[int, tuple[list[list[Path]], list[Path]]] = {}
        self.worst = 0
        self.opened: set[tuple[int, int]] = set()

    # ---------------------------------------------------------------- the world

    def hire(self, stage: int) -> None:
        worker = Worker(next(self.numbers), stage)
        self.workers[worker.number] = worker

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.ids), what))

    def loads(self, stage: int) -> dict[int, int]:
        return {n: len(worker.calls) for n, worker in self.workers.items() if worker.stage == stage}

    def run(self) -> None:
        last = len(self.plan.makers)
        if self.plan.deaths:
            self.later(self.random.random() * 5, self.kill)
        for _ in range(200_000):
            if self.scheduler.finished:
                return
            for order in self.scheduler.ready(self.loads(last)):
                task = None if isinstance(order, Proceed) else order.task
                if task is not None and (task.shard.index, task.attempt) not in self.opened:
                    self.opened.add((task.shard.index, task.attempt))
                    self.supply.open(task, order.worker)
                if isinstance(order, Prepare):
                    continue
                if isinstance(order, Begin):
                    self.call(order.worker, "attempt", order.task)
                else:
                    self.call(order.worker, "proceed", order.shard)
            for made in self.supply.ready([self.loads(stage) for stage in range(last)]):
                self.carry_out(made)
            self.check()
            assert self.supply.error is None
            assert self.events, "nothing will ever happen again"
            self.now, _, what = heapq.heappop(self.events)
            what()
        raise AssertionError("it does not end")

    def check(self) -> None:
        held = sum(self.lives.values())
        self.worst = max(self.worst, held)

    def kill(self) -> None:
        number = self.random.choice(sorted(self.workers))
        worker = self.workers.pop(number)
        self.hire(worker.stage)
        delay = self.random.choice([0.0, 0.0, 0.1, 2.0])  # until anybody hears of it
        for name, value in worker.calls:
            name, value = value if name == "busy" else (name, value)
            if name in ("make", "more"):
                self.lost_piece(value.number if name == "make" else value, number, delay)
                self.free(blocks_of(value) if name == "make" else [])
            elif name == "attempt":
                self.lost(value.shard.index, value.attempt, delay)
            elif name == "proceed":
                self.lost(value, self.scheduler.attempt_of(value), delay)
        held = [*worker.holds, *(item for trough in worker.troughs.values() for item in trough if item)]
        numbers = [item.ref.number if isinstance(item, Block) else item for item in held]
        self.free([number for number in numbers if isinstance(number, int)])
        self.plan.deaths -= 1
        if self.plan.deaths:
            self.later(self.random.random() * 5, self.kill)

    def lost(self, shard: int, attempt: int, delay: float) -> None:
        self.later(delay, lambda: self.settle(Lost(shard, attempt, "killed")))

    def lost_piece(self, piece: int, worker: int, delay: float) -> None:
        self.later(delay, lambda: self.supply.complete(Gone(piece, worker, "killed")))

    def lend(self, numbers: list[int]) -> None:
        for number in numbers:
            assert number in self.lives, "nobody is lent a block that is gone"
            self.due[number] = max(0, self.due.get(number, 0) - 1)
            self.readers[number] = self.readers.get(number, 0) + 1

    def free(self, numbers: list[int]) -> None:
        for number in numbers:
            self.readers[number] -= 1
            if not self.readers[number] and not self.due[number]:
                self.lives.pop(number, None)
                self.supply.freed(Freed((number,)))

    # ---------------------------------------------------------------- orders and calls

    def carry_out(self, order: Any) -> None:
        if isinstance(order, (Make, More, GiveUp)):
            name = {Make: "make", More: "more", GiveUp: "give_up"}[type(order)]
            self.call(order.worker, name, order.piece)
        elif isinstance(order, Feed):
            self.feed(order.worker, (order.shard, order.attempt), order.block)
        elif isinstance(order, Abort):
            self.feed(order.worker, (order.shard, order.attempt), "abort")
        elif isinstance(order, Keep):
            self.due[order.ref.number] = 2
        else:
            assert isinstance(order, Drop)
            self.due[order.ref.number] = 0
            if not self.readers.get(order.ref.number):
                self.lives.pop(order.ref.number)

    def call(self, number: int, name: str, value: Any) -> None:
        worker = self.workers.get(number)
        if name == "make":
            self.lend(blocks_of(value))
        if worker is None:
            if name == "make":
                self.free(blocks_of(value))
            if name in ("make", "more"):
                self.lost_piece(value.number if name == "make" else value, number, 0.0)
            elif name == "attempt":
                self.lost(value.shard.index, value.attempt, 0.0)
            return
        worker.calls.append((name, value))
        self.start(worker)

    def start(self, worker: Worker) -> None:
        if not worker.calls or worker.running or worker.number not in self.workers:
            return
        worker.running = True
        name, value = worker.calls[0]
        if name in ("make", "more"):
            seconds = self.plan.make_time(worker.stage) if self.gives(worker, name, value) else 0.0
            worker.busy += seconds
            self.later(seconds, lambda: self.give(worker, name, value))
        elif name == "give_up":
            worker.open.pop(value, None)
            self.answered(worker)
        elif name == "attempt":
            worker.at = (value.shard.index, value.attempt)
            if self.scheduler.schema is None:
                self.later(0, lambda: self.propose(worker))
            else:
                self.use(worker)
        else:
            worker.at = (value, self.scheduler.attempt_of(value))
            self.use(worker)

    def answered(self, worker: Worker) -> None:
        worker.calls.pop(0)
        worker.running = False
        self.later(0, lambda: self.start(worker))

    def gives(self, worker: Worker, name: str, value: Any) -> bool:
        """Say whether a call gives a block; that a piece has ended is told in no time."""
        return len(self.gifts(value, worker.stage) if name == "make" else worker.open.get(value, [])) > 1

    def give(self, worker: Worker, name: str, value: Any) -> None:
        if worker.number not in self.workers:
            return
        number = value.number if name == "make" else value
        if name == "make":
            worker.open[number] = self.gifts(value, worker.stage)
            self.free(blocks_of(value))
        gifts = worker.open.get(number)
        if gifts is None:
            self.supply.idle(number)
            self.answered(worker)
            return
        gift = gifts.pop(0)
        rejects = tuple(map(reject, gift.rejects))
        if gift.rows:
            ref = BlockRef(worker.number, 0, self.plan.size(gift.rows[0]), next(self.ids))
            self.lives[ref.number] = ref.size
            self.rows[ref.number] = gift.rows
            self.due[ref.number] = 0
            block = Block(ref, len(gift.rows), rejects=rejects)
            self.supply.complete(Made(number, block, gift.counts))
        else:
            del worker.open[number]
            self.supply.complete(Ended(number, gift.counts, Timings(), rejects))
        self.answered(worker)

    def gifts(self, piece: Piece, stage: int) -> list[Give]:
        """Return what a piece gives: its blocks, and its end."""
        rows = [(split.file, n) for split in piece.splits for n in range(split.rows)]
        aside = []
        for i, item in enumerate(piece.blocks):
            aside += [] if i == 0 and piece.skip else [path_of(each) for each in item.rejects]
            rows += self.rows[item.ref.number] if isinstance(item, Block) else []
        rows = rows[piece.skip :][: piece.rows]
        self.check_piece(piece, stage, rows)
        gifts = []
        made: list[Path] = []
        counts, given, bad, none, more = 0, 0, 0, 0, 0

        def ledger() -> Ledger:
            return Ledger(counts, 0, bad, ((counts, given),), (bad,), 0, (none,), (more,), (0,))

        for row in rows:
            counts += 1
            if self.plan.rejects(row):
                aside, bad = [*aside, row], bad + 1
                continue
            fan = self.plan.fan(row)
            none, more = none + (not fan), more + max(0, fan - 1)
            made += [(*row, i) for i in range(fan)]
            while len(made) >= self.plan.cut:
                block, made = made[: self.plan.cut], made[self.plan.cut :]
                given += len(block)
                gifts.append(Give(block, aside, ledger()))
                aside = []
        given += len(made)
        if made:
            gifts.append(Give(made, aside, ledger()))
            aside = []
        return [*gifts, Give([], aside, ledger())]

    def check_piece(self, piece: Piece, stage: int, rows: list[Path]) -> None:
        """A piece begins and ends at multiples of its stage's unit, counted from the start of its shard."""
        unit, stream = self.plan.units[stage], self.streams(piece.shard)[0][stage]
        if unit and rows:
            start = stream.index(rows[0])
            assert rows == stream[start : start + len(rows)]
            assert start % unit == 0 or (piece.blocks == () and self.plan.whole)
            assert (start + len(rows)) % unit == 0 or start + len(rows) == len(stream)

    # ---------------------------------------------------------------- the last stage

    def feed(self, number: int, attempt: tuple[int, int], fodder: Any) -> None:
        worker = self.workers.get(number)
        if worker is None:
            if isinstance(fodder, Block):
                self.lend([fodder.ref.number])
                self.free([fodder.ref.number])
            return
        if isinstance(fodder, Block):
            self.lend([fodder.ref.number])
        worker.troughs.setdefault(attempt, []).append(fodder)
        if worker.at == attempt and worker.waits:
            worker.waits = False
            self.later(0, lambda: self.use(worker))

    def propose(self, worker: Worker) -> None:
        if worker.number not in self.workers or worker.at is None:
            return
        shard, attempt = worker.at
        self.answered(worker)
        self.settle(Proposal(shard, attempt, b"schema"))

    def use(self, worker: Worker) -> None:
        """Take the next block, or wait for it."""
        if worker.number not in self.workers:
            return
        assert worker.at is not None and worker.calls[0][0] in ("attempt", "proceed")
        shard, attempt = worker.at
        trough = worker.troughs.setdefault(worker.at, [])
        if not trough:
            worker.waits = True
            self.supply.wait(Waiting(shard, attempt, len(worker.taken.get(worker.at, []))))
            return
        fodder = trough.pop(0)
        if fodder is None or fodder == "abort":
            self.free(worker.holds)
            worker.holds = []
            left = worker.troughs.pop(worker.at, [])
            self.free([item.ref.number for item in left if isinstance(item, Block)])
            worker.at = None
            taken = worker.taken.pop((shard, attempt), [])
            self.answered(worker)
            if fodder is None:
                rows = sum(len(self.rows[item.ref.number]) for item in taken if isinstance(item, Block))
                ledger = Ledger(rows, rows, 0, ((rows, rows),), (0,), 0, (0,), (0,), (0,))
                done = Done(shard, attempt, (), ledger, Timings())
                if self.scheduler.attempt_of(shard) == attempt:
                    blocks = [item for item in taken if isinstance(item, Block)]
                    self.finished[shard] = [row for block in blocks for row in self.rows[block.ref.number]]
                    self.rejected[shard] = [path_of(each) for item in taken for each in item.rejects]
                self.settle(done)
            else:
                self.settle(Lost(shard, attempt, fodder, blame=False))
            return
        worker.taken.setdefault(worker.at, []).append(fodder)
        if isinstance(fodder, Tail):
            self.later(0, lambda: self.use(worker))
            return
        worker.holds.append(fodder.ref.number)
        gone, worker.holds = worker.holds[: -self.plan.keeps], worker.holds[-self.plan.keeps :]
        self.free(gone)
        seconds = self.plan.use_time()
        worker.busy += seconds
        call = worker.calls[0]
        worker.calls[0] = ("busy", call)
        self.later(seconds, lambda: self.used(worker, call))

    def used(self, worker: Worker, call: tuple[str, Any]) -> None:
        if worker.number not in self.workers:
            return
        worker.calls[0] = call
        if self.plan.reading and worker.at is not None and len(worker.taken[worker.at]) % 2:
            shard, attempt = worker.at
            self.answered(worker)
            self.settle(Blocks(shard, attempt, b""))
            return
        self.use(worker)

    def settle(self, outcome: Any) -> None:
        if not isinstance(outcome, (Proposal, Blocks)):
            if self.scheduler.attempt_of(outcome.shard) == outcome.attempt and isinstance(outcome, Done):
                whole = self.supply.completed(outcome)
                assert isinstance(whole, Done), whole
                self.pieces_read(whole)
                outcome = whole
            self.supply.close(outcome.shard, outcome.attempt)
        self.scheduler.complete(outcome)

    def pieces_read(self, done: Done) -> None:
        streams, rejected = self.streams(done.shard)
        assert done.ledger.read == len(streams[0]), "each row is counted once"
        assert done.ledger.rejected == len(rejected)
        counted = [(len(taken), len(given)) for taken, given in pairwise(streams)]
        assert list(done.ledger.steps[:-1]) == counted

    def streams(self, shard: int) -> tuple[list[list[Path]], list[Path]]:
        """Return the rows that come to each stage, to the last one, too, and those that are rejected."""
        if shard not in self.known:
            rows: list[Path] = [
                (split.file, n) for split in self.shards[shard].splits for n in range(split.rows)
            ]
            streams, rejected = [rows], []
            for _ in self.plan.makers:
                rejected += [row for row in rows if self.plan.rejects(row)]
                rows = [row for row in rows if not self.plan.rejects(row)]
                rows = [(*row, i) for row in rows for i in range(self.plan.fan(row))]
                streams.append(rows)
            self.known[shard] = streams, rejected
        return self.known[shard]


def blocks_of(piece: Piece) -> list[int]:
    return [item.ref.number for item in piece.blocks if isinstance(item, Block)]


def reject(row: Path) -> Reject:
    return Reject(Split(*(*row, 0, 0, 0)[:3]), len(row), len(row), Fault("", "", repr(row)))


def path_of(reject: Reject) -> Path:
    found: Path = literal_eval(reject.fault.message)
    return found


def world_of(draw: random.Random, *, deaths: int, steady: bool, reading: bool, joined: bool = False) -> World:
    stages = draw.choice([1, 1, 1, 2, 3])
    salt = draw.random()
    most = draw.choice([1, 2, 4])
    size = USUAL if steady else draw.choice([USUAL, USUAL // 8, 100])

    def fan(path: Path) -> int:
        return random.Random(hash((path, salt))).randrange(0, most + 1)

    def size_of(path: Path) -> int:
        return size if steady else random.Random(hash((path, salt, 1))).randrange(1, size + 1)

    speeds = [draw.choice([0.01, 0.1, 1.0]) for _ in range(stages)]
    use = draw.choice([0.01, 0.1, 1.0])
    plan = Plan(
        makers=[draw.randrange(1, 5) for _ in range(stages)],
        last=draw.randrange(1, 4),
        shards=[draw.randrange(0, 5) for _ in range(draw.randrange(1, 12))],
        fan=fan,
        size=size_of,
        make_time=lambda stage: speeds[stage] * draw.random(),
        use_time=lambda: use * draw.random(),
        budget=draw.choice([0, size, 3 * size, 100 * size]),
        deaths=deaths,
        reading=reading,
        keeps=draw.choice([1, 2]),
    )
    if joined:
        plan.units = [draw.choice([0, 2, 5]) for _ in range(stages)]
    if not steady:
        plan.rows = lambda split: random.Random(hash((split, salt, 2))).randrange(0, 5)
        few = draw.choice([0.0, 0.0, 0.3])
        plan.rejects = lambda row: random.Random(hash((row, salt, 3))).random() < few
        plan.cut = draw.choice([1, 3])
        plan.units = [draw.choice([0, 0, 1, 2, 5, 40]) for _ in range(stages)]
        plan.whole = draw.random() < 0.1
    return World(plan, draw.randrange(1 << 30))


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), deaths=st.sampled_from([0, 0, 1, 3, 8]), reading=st.booleans())
def test_it_ends_with_every_block_in_order(seed: int, deaths: int, reading: bool) -> None:
    world = world_of(random.Random(seed), deaths=deaths, steady=False, reading=reading)
    world.run()
    for shard in range(len(world.shards)):
        streams, rejected = world.streams(shard)
        assert world.finished[shard] == streams[-1]
        assert sorted(world.rejected[shard]) == sorted(rejected)
    if not deaths:
        assert not world.lives and not world.supply.held, "every block is let go of"
    assert world.scheduler.finished and world.scheduler.error is None


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), deaths=st.sampled_from([0, 0, 2]), reading=st.booleans())
def test_the_budget_is_exceeded_by_one_block_of_each_open_shard_at_most(
    seed: int, deaths: int, reading: bool
) -> None:
    world = world_of(random.Random(seed), deaths=deaths, steady=True, reading=reading)
    world.run()
    opened = min(len(world.shards), 2 * world.plan.last)
    kept = world.plan.last * world.plan.keeps * USUAL  # what attempts hold on to while they wait
    assert world.worst <= world.plan.budget + opened * USUAL + kept


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), deaths=st.sampled_from([0, 0, 2]), reading=st.booleans())
def test_where_pieces_are_joined_it_is_exceeded_by_the_blocks_of_one_at_most(
    seed: int, deaths: int, reading: bool
) -> None:
    world = world_of(random.Random(seed), deaths=deaths, steady=True, reading=reading, joined=True)
    world.run()
    opened = min(len(world.shards), 2 * world.plan.last)
    joined = 1 + sum(max(1, unit) for unit in world.plan.units[1:])
    kept = world.plan.last * world.plan.keeps * USUAL
    assert world.worst <= world.plan.budget + opened * joined * USUAL + kept


@pytest.mark.parametrize(
    ("makers", "last", "make", "use"),
    [
        (2, 1, 1.0, 0.5),
        (2, 1, 1.0, 0.1),
        (2, 1, 0.2, 1.0),
        (4, 2, 1.0, 0.5),
        (1, 1, 1.0, 1.0),
        (8, 1, 1.0, 0.125),
    ],
)
def test_the_bottleneck_is_never_idle_for_long(makers: int, last: int, make: float, use: float) -> None:
    ahead = 1 + math.ceil(2 * makers / (4 * last))
    plan = Plan(
        makers=[makers],
        last=last,
        shards=[4] * 25,
        fan=lambda path: 4,
        size=lambda path: USUAL,
        make_time=lambda stage: make,
        use_time=lambda: use,
        budget=64 * USUAL,
        ahead=max(2, ahead),
    )
    world = World(plan)
    world.run()
    ideal = max(400 * make / makers, 400 * use / last)
    assert world.now <= 1.05 * ideal + 4 * (make + use)


def test_a_chain_of_three_stages_is_as_fast_as_its_slowest() -> None:
    plan = Plan(
        makers=[2, 2],
        last=1,
        shards=[4] * 20,
        fan=lambda path: 2,
        size=lambda path: USUAL,
        make_time=lambda stage: (0.2, 1.0)[stage],
        use_time=lambda: 0.1,
        budget=64 * USUAL,
    )
    world = World(plan)
    world.run()
    ideal = 20 * 4 * 2 * 2 * 1.0 / 2
    assert world.now <= 1.05 * ideal + 5
