"""Rows that differ in what they cost, on a virtual clock: how near workers come to what is possible."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.events import RowsRead, WorkerReady
from headrace.core.messages import RestLeft
from headrace.core.work import Shard, Split
from headrace.driver.policies.shards import WorkSharing
from headrace.driver.policy import DivideShard, Tell
from headrace.driver.shards import ShardTable
from headrace.worker.attempt import REPORT_SECONDS
from headrace.worker.early_end import EarlyEnd, Speed
from headrace.worker.meter import Meter
from headrace.worker.reading import Read
from headrace.worker.rows import Rows, RowSpan

START = 0.06  # seconds from the wish for another worker to its first row
TRAVEL = 0.001  # of a message
END = 0.005  # of an attempt, to its outcome
TICK = 0.2
BY_ROW = SimpleNamespace(row_by_row=True, batch_sizes=tuple)


class World:
    """The policy, the table of shards and the attempts are real; workers and time are not."""

    def __init__(self, costs: list[float], splits: int, most: int) -> None:
        self.now, self.costs, self.most = 0.0, costs, most
        self.each = len(costs) // splits
        shard = Shard(0, tuple(Split(i, 0, 1, self.each, self.each) for i in range(splits)))
        self.shards = ShardTable([shard], None)
        self.waiting, self.done, self.parts = [0], 0, 0
        self.policy = WorkSharing(most)
        self.loads = {0: 0}
        self.at_work: dict[int, tuple[int, int]] = {}
        self.attempts: dict[tuple[int, int], EarlyEnd] = {}
        self.events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self.numbers = itertools.count()

    def later(self, seconds: float, action: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), action, args))

    def run(self) -> float:
        """Let time pass until all is done; return when that was."""
        self.beat()
        while self.done < len(self.costs) or self.at_work:
            self.now, _, action, args = heapq.heappop(self.events)
            action(*args)
        return self.now

    # ------------------------------------------------------------ the driver

    def beat(self) -> None:
        self.turn()
        self.later(TICK, self.beat)

    def hear(self, message: Any) -> None:
        self.policy.on_message(message, self.now)
        self.turn()

    def turn(self) -> None:
        scheduler = SimpleNamespace(
            at_work=self.at_work,
            tasks_waiting=lambda stage: len(self.waiting),
            open_workers=lambda stage: set(self.at_work),
            shard_of=self.shards.__getitem__,
            family=self.shards.family,
            count=len(self.shards),
            blocks=SimpleNamespace(attempts_waiting=0),
        )
        view: Any = SimpleNamespace(
            scheduler=scheduler, stages=1, now=self.now, holds=False, loads=lambda stage: dict(self.loads)
        )
        for action in self.policy.before_schedule(view):
            assert isinstance(action, DivideShard)
            self.shards.divide(action.parts)
            scheduler.count = len(self.shards)
            self.waiting.append(action.parts[1].index)
        for worker in [*self.loads, *range(len(self.loads), self.most)]:
            if self.waiting and not self.loads.get(worker):
                started = worker in self.loads
                self.loads[worker], shard = 1, self.waiting.pop(0)
                self.at_work[worker] = shard, 0
                self.later(TRAVEL if started else START, self.attempt, worker, shard)
        for action in self.policy.after_schedule(view):
            assert isinstance(action, Tell)
            self.later(TRAVEL, self.leave, action)
        wakeup = self.policy.next_wakeup(self.now)
        if wakeup < self.now + TICK:
            self.later(wakeup - self.now, self.turn)

    # ------------------------------------------------------------ workers

    def leave(self, asked: Any) -> None:
        attempt = self.attempts.get((asked.worker, asked.shard))
        for rest in attempt.leave(asked.what.worth, asked.what.shares) if attempt is not None else ():
            self.later(TRAVEL, self.hear, RestLeft(asked.shard, 0, rest))

    def attempt(self, worker: int, shard: int) -> None:
        meter = Meter(0)
        early_end = self.attempts[worker, shard] = EarlyEnd(
            self.shards[shard],
            (BY_ROW,),  # type: ignore[arg-type]
            meter,
            every=0.0,
            unit=0,
            speed=Speed(),
            ready=lambda: True,
            shared=True,
            clock=lambda: self.now,
        )
        self.hear(WorkerReady(worker, END))
        self.work(worker, shard, self.rows(early_end), meter, self.now)

    def rows(self, early_end: EarlyEnd) -> Iterator[int]:
        """The numbers of the rows that are passed."""

        def reads() -> Iterator[Read]:
            for split in early_end.splits():
                batch = pa.record_batch({"n": pa.nulls(split.length)})
                yield Read(Rows(batch, (RowSpan(split, split.low, split.length),)))

        for read in early_end.pass_reads(reads()):
            for span in read.rows.spans:
                yield from (span.split.file * self.each + int(row) for row in span.numbers())

    def work(self, worker: int, shard: int, rows: Iterator[int], meter: Meter, reported: float) -> None:
        row = next(rows, None)
        if row is None:
            del self.attempts[worker, shard], self.at_work[worker]
            self.parts += 1
            self.later(END, self.idle, worker)
        else:
            self.later(self.costs[row], self.row_done, worker, shard, rows, meter, reported)

    def row_done(self, worker: int, shard: int, rows: Iterator[int], meter: Meter, reported: float) -> None:
        meter.read_rows += 1
        self.done += 1
        if self.now - reported >= REPORT_SECONDS:
            reported = self.now
            left = self.attempts[worker, shard].shard_rows
            self.later(TRAVEL, self.hear, RowsRead(worker, shard, meter.read_rows, of=left))
        self.work(worker, shard, rows, meter, reported)

    def idle(self, worker: int) -> None:
        self.loads[worker] = 0
        self.turn()


CHANCE = random.Random(7)
SHAPES = {
    "uniform": [1.0] * 20,
    "lognormal": [CHANCE.lognormvariate(0.0, 1.5) for _ in range(20)],
    "giant": [1.0] * 19 + [50.0],
}


@pytest.mark.parametrize("splits", [1, 20])
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_workers_end_at_about_the_same_time(shape: str, workers: int, splits: int) -> None:
    """All would take ten seconds if nothing were lost. A shard alone begins on the one worker that there is."""
    costs = [cost * 10 * workers / sum(SHAPES[shape]) / 100 for cost in SHAPES[shape] for _ in range(100)]
    world = World(costs, splits, workers)
    assert world.run() < 10.4
    assert world.done == len(costs) and world.parts <= 4 * workers
