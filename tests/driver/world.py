"""A world of workers with a clock of its own, which drives the scheduler as the loop would."""

from __future__ import annotations

import heapq
import itertools
import random
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.core.messages import AttemptWaiting, BlocksFreed
from headrace.core.work import (
    AttemptLost,
    Block,
    BlockMade,
    BlockRef,
    Done,
    Failed,
    Fault,
    Ledger,
    OutputBlocks,
    Proposal,
    Reject,
    Shard,
    Split,
    Task,
    Timings,
    TrailingRejects,
)
from headrace.driver.block_queues import EarlierStages
from headrace.driver.block_tasks import BlockTasks
from headrace.driver.ports import Begin, DropBlock, Feed, GiveUp, KeepBlock, Order, Proceed
from headrace.driver.scheduler import Scheduler
from headrace.plan.partitioning import row_ranges

Path = tuple[int, ...]


@dataclass
class Plan:
    """What the world is like.

    Rows are paths. A stage makes ``fan(row)`` rows of one, and rejects those of which ``rejects`` says so. Blocks
    have ``cut`` rows, and a stage's tasks multiples of its ``units``.
    """

    earlier: list[int]
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
class Answer:
    """A block, or the end of a task: its rows, those rejected before it, and the counts then."""

    rows: list[Path]
    rejects: list[Path]
    counts: Ledger


@dataclass
class Worker:
    number: int
    stage: int
    calls: list[tuple[str, Any]] = field(default_factory=list)
    open: dict[int, list[Answer]] = field(default_factory=dict)  # by task: what it will answer
    inputs: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    at: tuple[int, int] | None = None  # the attempt at work
    holds: list[int] = field(default_factory=list)
    taken: dict[tuple[int, int], list[Block | TrailingRejects]] = field(default_factory=dict)  # by attempt
    busy: float = 0.0
    running: bool = False
    waits: bool = False  # for the next block of the attempt at work


class World:
    """Runs a plan as the loop would, with workers that take their time and now and then die."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan, self.now, self.random = plan, 0.0, random.Random(seed)
        self.numbers, self.ids = itertools.count(1), itertools.count(1)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.workers: dict[int, Worker] = {}
        for stage, count in enumerate([*plan.earlier, plan.last]):
            for _ in range(count):
                self.start_worker(stage)
        splits = iter([Split(n, 0, 1, plan.rows(n)) for n in range(sum(plan.shards))])
        self.shards = [
            Shard(i, tuple(itertools.islice(splits, count))) for i, count in enumerate(plan.shards)
        ]
        stages = len(plan.earlier)
        plan.units = plan.units or [0] * stages
        blocks = BlockTasks(
            EarlierStages(
                [1] * stages,
                [()] * stages,
                units=plan.units,
                split=lambda shard: row_ranges(shard.splits, plan.units[0], whole=plan.whole),
            ),
            budget=plan.budget,
            max_attempts=10**6,
        )
        self.scheduler = Scheduler(
            self.shards,
            merge=lambda a, b: (b, True),
            reading=plan.reading,
            max_attempts=10**6,
            ahead=plan.ahead,
            blocks=blocks,
        )
        self.blocks: dict[int, int] = {}  # blocks that exist: size
        self.due: dict[int, int] = {}  # by block: how often it will still be given to a worker
        self.readers: dict[int, int] = {}  # by block: how many read it
        self.rows: dict[int, list[Path]] = {}  # of every block there ever was
        self.finished: dict[int, list[Path]] = {}
        self.rejected: dict[int, list[Path]] = {}
        self.known: dict[int, tuple[list[list[Path]], list[Path]]] = {}
        self.worst = 0

    # ---------------------------------------------------------------- the world

    def start_worker(self, stage: int) -> None:
        worker = Worker(next(self.numbers), stage)
        self.workers[worker.number] = worker

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.ids), what))

    def loads(self, stage: int) -> dict[int, int]:
        return {n: len(worker.calls) for n, worker in self.workers.items() if worker.stage == stage}

    def run(self) -> None:
        last = len(self.plan.earlier)
        if self.plan.deaths:
            self.later(self.random.random() * 5, self.kill)
        for _ in range(200_000):
            if self.scheduler.finished:
                return
            for order in self.scheduler.ready([self.loads(stage) for stage in range(last + 1)]):
                self.carry_out(order)
            self.check()
            assert self.scheduler.error is None
            assert self.events, "nothing will ever happen again"
            self.now, _, what = heapq.heappop(self.events)
            what()
        raise AssertionError("it does not end")

    def check(self) -> None:
        held = sum(self.blocks.values())
        self.worst = max(self.worst, held)

    def kill(self) -> None:
        number = self.random.choice(sorted(self.workers))
        worker = self.workers.pop(number)
        self.start_worker(worker.stage)
        delay = self.random.choice([0.0, 0.0, 0.1, 2.0])  # until the scheduler knows of it
        for name, value in worker.calls:
            name, value = value if name == "busy" else (name, value)
            if name in ("make", "more"):
                self.lose_task(value, delay)
                self.free(blocks_of(value) if name == "make" else [])
            elif name == "attempt":
                self.lose_attempt(value.shard.index, value.attempt, delay)
            elif name == "proceed":
                self.lose_attempt(*value, delay)
        held = [*worker.holds, *(item for queue in worker.inputs.values() for item in queue if item)]
        numbers = [item.ref.number if isinstance(item, Block) else item for item in held]
        self.free([number for number in numbers if isinstance(number, int)])
        self.plan.deaths -= 1
        if self.plan.deaths:
            self.later(self.random.random() * 5, self.kill)

    def lose_attempt(self, shard: int, attempt: int, delay: float) -> None:
        self.later(delay, lambda: self.settle(AttemptLost(shard, attempt, "killed")))

    def lose_task(self, task: Any, delay: float) -> None:
        lost = AttemptLost(*name_of(task), "killed")
        self.later(delay, lambda: self.scheduler.complete_block(lost.attempt, lost))

    def pass_blocks(self, numbers: list[int]) -> None:
        for number in numbers:
            assert number in self.blocks, "no worker is given a block that is gone"
            self.due[number] = max(0, self.due.get(number, 0) - 1)
            self.readers[number] = self.readers.get(number, 0) + 1

    def free(self, numbers: list[int]) -> None:
        for number in numbers:
            self.readers[number] -= 1
            if not self.readers[number] and not self.due[number]:
                self.blocks.pop(number, None)
                self.scheduler.blocks.freed(BlocksFreed((number,)))

    # ---------------------------------------------------------------- orders and calls

    def carry_out(self, order: Order) -> None:
        if isinstance(order, Begin):
            last = order.stage == self.scheduler.last_stage
            self.call(order.worker, "attempt" if last else "make", order.task)
        elif isinstance(order, Proceed):
            last = order.stage == self.scheduler.last_stage
            self.call(order.worker, "proceed" if last else "more", (order.shard, order.attempt))
        elif isinstance(order, GiveUp):
            self.call(order.worker, "give_up", (order.shard, order.attempt))
        elif isinstance(order, Feed):
            item = "abort" if isinstance(order.item, str) else order.item
            self.feed(order.worker, (order.shard, order.attempt), item)
        elif isinstance(order, KeepBlock):
            self.due[order.ref.number] = 2
        else:
            assert isinstance(order, DropBlock)
            self.due[order.ref.number] = 0
            if not self.readers.get(order.ref.number):
                self.blocks.pop(order.ref.number)

    def call(self, number: int, name: str, value: Any) -> None:
        worker = self.workers.get(number)
        if name == "make":
            self.pass_blocks(blocks_of(value))
        if worker is None:
            if name == "make":
                self.free(blocks_of(value))
            if name in ("make", "more"):
                self.lose_task(value, 0.0)
            elif name == "attempt":
                self.lose_attempt(value.shard.index, value.attempt, 0.0)
            return
        worker.calls.append((name, value))
        self.start(worker)

    def start(self, worker: Worker) -> None:
        if not worker.calls or worker.running or worker.number not in self.workers:
            return
        worker.running = True
        name, value = worker.calls[0]
        if name in ("make", "more"):
            seconds = self.plan.make_time(worker.stage) if self.gives_block(worker, name, value) else 0.0
            worker.busy += seconds
            self.later(seconds, lambda: self.give(worker, name, value))
        elif name == "give_up":
            worker.open.pop(value[1], None)
            self.answered(worker)
        elif name == "attempt":
            worker.at = (value.shard.index, value.attempt)
            if self.scheduler.schema is None:
                self.later(0, lambda: self.propose(worker))
            else:
                self.use(worker)
        else:
            worker.at = value
            self.use(worker)

    def answered(self, worker: Worker) -> None:
        worker.calls.pop(0)
        worker.running = False
        self.later(0, lambda: self.start(worker))

    def gives_block(self, worker: Worker, name: str, value: Any) -> bool:
        """Say whether a call gives a block; that a task has ended is answered in no time."""
        return len(self.answers(value, worker.stage) if name == "make" else worker.open.get(value[1], [])) > 1

    def give(self, worker: Worker, name: str, value: Any) -> None:
        if worker.number not in self.workers:
            return
        shard, number = name_of(value)
        if name == "make":
            worker.open[number] = self.answers(value, worker.stage)
            self.free(blocks_of(value))
        answers = worker.open.get(number)
        if answers is None:
            self.scheduler.complete_block(number, None)
            self.answered(worker)
            return
        result = answers.pop(0)
        rejects = tuple(map(reject, result.rejects))
        if result.rows:
            ref = BlockRef(worker.number, 0, self.plan.size(result.rows[0]), next(self.ids))
            self.blocks[ref.number] = ref.size
            self.rows[ref.number] = result.rows
            self.due[ref.number] = 0
            block = Block(ref, len(result.rows), rejects=rejects)
            self.scheduler.complete_block(number, BlockMade(shard, number, block, result.counts))
        else:
            del worker.open[number]
            self.scheduler.complete_block(
                number, Done(shard, number, (), result.counts, Timings(), rejects=rejects)
            )
        self.answered(worker)

    def answers(self, task: Task, stage: int) -> list[Answer]:
        """Return the answers of a task: its blocks, and its end."""
        rows = [(split.file, n) for split in task.shard.splits for n in range(split.rows)]
        aside = []
        for i, item in enumerate(task.blocks):
            aside += [] if i == 0 and task.skip else [path_of(each) for each in item.rejects]
            rows += self.rows[item.ref.number] if isinstance(item, Block) else []
        rows = rows[task.skip :][: task.rows]
        self.check_task(task, stage, rows)
        answers = []
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
                answers.append(Answer(block, aside, ledger()))
                aside = []
        given += len(made)
        if made:
            answers.append(Answer(made, aside, ledger()))
            aside = []
        return [*answers, Answer([], aside, ledger())]

    def check_task(self, task: Task, stage: int, rows: list[Path]) -> None:
        """A task begins and ends at multiples of its stage's unit, counted from the start of its shard."""
        unit, stream = self.plan.units[stage], self.streams(task.shard.index)[0][stage]
        if unit and rows:
            start = stream.index(rows[0])
            assert rows == stream[start : start + len(rows)]
            assert start % unit == 0 or (task.blocks == () and self.plan.whole)
            assert (start + len(rows)) % unit == 0 or start + len(rows) == len(stream)

    # ---------------------------------------------------------------- the last stage

    def feed(self, number: int, attempt: tuple[int, int], item: Any) -> None:
        worker = self.workers.get(number)
        if worker is None:
            if isinstance(item, Block):
                self.pass_blocks([item.ref.number])
                self.free([item.ref.number])
            return
        if isinstance(item, Block):
            self.pass_blocks([item.ref.number])
        worker.inputs.setdefault(attempt, []).append(item)
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
        queue = worker.inputs.setdefault(worker.at, [])
        if not queue:
            worker.waits = True
            self.scheduler.blocks.attempt_waits(
                AttemptWaiting(shard, attempt, len(worker.taken.get(worker.at, [])))
            )
            return
        item = queue.pop(0)
        if item is None or item == "abort":
            self.free(worker.holds)
            worker.holds = []
            left = worker.inputs.pop(worker.at, [])
            self.free([item.ref.number for item in left if isinstance(item, Block)])
            worker.at = None
            taken = worker.taken.pop((shard, attempt), [])
            self.answered(worker)
            if item is None:
                rows = sum(len(self.rows[each.ref.number]) for each in taken if isinstance(each, Block))
                ledger = Ledger(rows, rows, 0, ((rows, rows),), (0,), 0, (0,), (0,), (0,))
                done = Done(shard, attempt, (), ledger, Timings())
                if self.scheduler.attempt_of(shard) == attempt:
                    blocks = [item for item in taken if isinstance(item, Block)]
                    self.finished[shard] = [row for block in blocks for row in self.rows[block.ref.number]]
                    self.rejected[shard] = [path_of(each) for item in taken for each in item.rejects]
                self.settle(done)
            else:
                self.settle(AttemptLost(shard, attempt, item, charged=False))
            return
        worker.taken.setdefault(worker.at, []).append(item)
        if isinstance(item, TrailingRejects):
            self.later(0, lambda: self.use(worker))
            return
        worker.holds.append(item.ref.number)
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
            self.settle(OutputBlocks(shard, attempt, b""))
            return
        self.use(worker)

    def settle(self, outcome: Any) -> None:
        current = self.scheduler.attempt_of(outcome.shard) == outcome.attempt
        outcome = self.scheduler.with_all_stages(outcome)
        if current and isinstance(outcome, Done):
            self.check_counts(outcome)
        assert not isinstance(outcome, Failed), outcome
        self.scheduler.complete(outcome)

    def check_counts(self, done: Done) -> None:
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
            for _ in self.plan.earlier:
                rejected += [row for row in rows if self.plan.rejects(row)]
                rows = [row for row in rows if not self.plan.rejects(row)]
                rows = [(*row, i) for row in rows for i in range(self.plan.fan(row))]
                streams.append(rows)
            self.known[shard] = streams, rejected
        return self.known[shard]


def blocks_of(task: Task) -> list[int]:
    return [item.ref.number for item in task.blocks if isinstance(item, Block)]


def name_of(value: Any) -> tuple[int, int]:
    """Return the shard and the number of a task, which may be given by these."""
    return (value.shard.index, value.attempt) if isinstance(value, Task) else value


def reject(row: Path) -> Reject:
    return Reject(Split(*(*row, 0, 0, 0)[:3]), len(row), len(row), Fault("", "", repr(row)))


def path_of(reject: Reject) -> Path:
    found: Path = literal_eval(reject.fault.message)
    return found
