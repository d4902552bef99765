"""The supply and the scheduler, driven by a world with a clock of its own: it always ends, in order, in bounds."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
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
    Freed,
    Gone,
    Ledger,
    Lost,
    Made,
    Piece,
    Proposal,
    Shard,
    Split,
    Timings,
    Waiting,
)
from millrace.run.scheduler import Begin, Prepare, Proceed, Scheduler
from millrace.run.supply import USUAL, Abort, Drop, Feed, GiveUp, Make, More, Supply

Path = tuple[int, ...]
LEDGER = Ledger(1, 0, 0, ((1, 1),), (0,))


@dataclass
class Plan:
    """What the world is like. ``blocks(path)`` says how many blocks a piece gives."""

    makers: list[int]
    last: int
    shards: list[int]  # splits of each
    blocks: Callable[[Path], int]
    size: Callable[[Path], int]
    make_time: Callable[[int], float]
    use_time: Callable[[], float]
    budget: int
    deaths: int = 0
    reading: bool = False
    ahead: int = 2
    keeps: int = 1  # blocks that an attempt holds on to while it waits


@dataclass
class Worker:
    number: int
    stage: int
    calls: list[tuple[str, Any]] = field(default_factory=list)
    open: dict[int, list[Path]] = field(default_factory=dict)  # by piece: blocks to give
    troughs: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    at: tuple[int, int] | None = None  # the attempt at work
    holds: list[int] = field(default_factory=list)
    taken: dict[tuple[int, int], list[Path]] = field(default_factory=dict)  # by attempt
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
        splits = itertools.count()
        self.shards = [
            Shard(i, tuple(Split(next(splits), 0, 1) for _ in range(count)))
            for i, count in enumerate(plan.shards)
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
        self.supply = Supply([1] * stages, [()] * stages, budget=plan.budget, max_attempts=10**6)
        self.lives: dict[int, tuple[int, Path]] = {}  # blocks that exist: size, path
        self.pieces: dict[int, tuple[int, Path]] = {}  # stage and path of a piece
        self.paths: dict[int, Path] = {}  # of every block there ever was
        self.finished: dict[int, list[Path]] = {}
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
        held = sum(size for size, _ in self.lives.values())
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
            elif name == "attempt":
                self.lost(value.shard.index, value.attempt, delay)
            elif name == "proceed":
                self.lost(value, self.scheduler.attempt_of(value), delay)
        held = [*worker.holds, *(item for trough in worker.troughs.values() for item in trough if item)]
        self.free([item.ref.number if isinstance(item, Block) else item for item in held])
        self.plan.deaths -= 1
        if self.plan.deaths:
            self.later(self.random.random() * 5, self.kill)

    def lost(self, shard: int, attempt: int, delay: float) -> None:
        self.later(delay, lambda: self.settle(Lost(shard, attempt, "killed")))

    def lost_piece(self, piece: int, worker: int, delay: float) -> None:
        self.later(delay, lambda: self.supply.complete(Gone(piece, worker, "killed")))

    def free(self, numbers: list[int]) -> None:
        for number in numbers:
            self.lives.pop(number, None)
        self.supply.freed(Freed(tuple(numbers)))

    # ---------------------------------------------------------------- orders and calls

    def carry_out(self, order: Any) -> None:
        if isinstance(order, (Make, More, GiveUp)):
            name = {Make: "make", More: "more", GiveUp: "give_up"}[type(order)]
            self.call(order.worker, name, order.piece)
        elif isinstance(order, Feed):
            self.feed(order.worker, (order.shard, order.attempt), order.block)
        elif isinstance(order, Abort):
            self.feed(order.worker, (order.shard, order.attempt), "abort")
        else:
            assert isinstance(order, Drop)
            self.lives.pop(order.ref.number)

    def call(self, number: int, name: str, value: Any) -> None:
        worker = self.workers.get(number)
        if worker is None:
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
        return self.plan.blocks(self.path_of(value)) > 0 if name == "make" else bool(worker.open.get(value))

    def give(self, worker: Worker, name: str, value: Any) -> None:
        if worker.number not in self.workers:
            return
        number = value.number if name == "make" else value
        if name == "make":
            path = self.path_of(value)
            self.pieces[number] = worker.stage, path
            worker.open[number] = [(*path, i) for i in range(self.plan.blocks(path))]
            if value.block is not None:
                self.free([value.block.ref.number])
        blocks = worker.open.get(number)
        if blocks is None:
            self.supply.idle(number)
        elif blocks:
            path = blocks.pop(0)
            ref = BlockRef(worker.number, 0, self.plan.size(path), next(self.ids))
            self.lives[ref.number] = ref.size, path
            self.paths[ref.number] = path
            self.supply.complete(Made(number, Block(ref, 1), LEDGER))
        else:
            del worker.open[number]
            self.supply.complete(Ended(number, LEDGER, Timings()))
        self.answered(worker)

    def path_of(self, piece: Piece) -> Path:
        if piece.block is not None:
            return self.paths[piece.block.ref.number]
        assert piece.split is not None
        return (piece.split.file,)

    # ---------------------------------------------------------------- the last stage

    def feed(self, number: int, attempt: tuple[int, int], fodder: Any) -> None:
        worker = self.workers.get(number)
        if worker is None:
            if isinstance(fodder, Block):
                self.free([fodder.ref.number])
            return
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
                done = Done(shard, attempt, (), Ledger(len(taken), 1, 0, ((1, 1),), (0,)), Timings())
                if self.scheduler.attempt_of(shard) == attempt:
                    self.finished[shard] = taken
                self.settle(done)
            else:
                self.settle(Lost(shard, attempt, fodder, blame=False))
            return
        worker.taken.setdefault(worker.at, []).append(self.paths[fodder.ref.number])
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
                outcome = self.supply.completed(outcome)
                self.pieces_read(outcome)
            self.supply.close(outcome.shard, outcome.attempt)
        self.scheduler.complete(outcome)

    def pieces_read(self, done: Done) -> None:
        assert done.ledger.read == self.plan.shards[done.shard], "each split is counted once"

    def expected(self, shard: int) -> list[Path]:
        paths: list[Path] = [(split.file,) for split in self.shards[shard].splits]
        for _ in self.plan.makers:
            paths = [(*path, i) for path in paths for i in range(self.plan.blocks(path))]
        return paths


def world_of(draw: random.Random, *, deaths: int, steady: bool, reading: bool) -> World:
    stages = draw.choice([1, 1, 1, 2, 3])
    salt = draw.random()
    most = draw.choice([1, 2, 4])
    size = USUAL if steady else draw.choice([USUAL, USUAL // 8, 100])

    def blocks(path: Path) -> int:
        return random.Random(hash((path, salt))).randrange(0, most + 1)

    def size_of(path: Path) -> int:
        return size if steady else random.Random(hash((path, salt, 1))).randrange(1, size + 1)

    speeds = [draw.choice([0.01, 0.1, 1.0]) for _ in range(stages)]
    use = draw.choice([0.01, 0.1, 1.0])
    plan = Plan(
        makers=[draw.randrange(1, 5) for _ in range(stages)],
        last=draw.randrange(1, 4),
        shards=[draw.randrange(0, 5) for _ in range(draw.randrange(1, 12))],
        blocks=blocks,
        size=size_of,
        make_time=lambda stage: speeds[stage] * draw.random(),
        use_time=lambda: use * draw.random(),
        budget=draw.choice([0, size, 3 * size, 100 * size]),
        deaths=deaths,
        reading=reading,
        keeps=draw.choice([1, 2]),
    )
    return World(plan, draw.randrange(1 << 30))


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), deaths=st.sampled_from([0, 0, 1, 3, 8]), reading=st.booleans())
def test_it_ends_with_every_block_in_order(seed: int, deaths: int, reading: bool) -> None:
    world = world_of(random.Random(seed), deaths=deaths, steady=False, reading=reading)
    world.run()
    for shard in range(len(world.shards)):
        assert world.finished[shard] == world.expected(shard)
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
        blocks=lambda path: 4,
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
        blocks=lambda path: 2,
        size=lambda path: USUAL,
        make_time=lambda stage: (0.2, 1.0)[stage],
        use_time=lambda: 0.1,
        budget=64 * USUAL,
    )
    world = World(plan)
    world.run()
    ideal = 20 * 4 * 2 * 2 * 1.0 / 2
    assert world.now <= 1.05 * ideal + 5
