"""The real driver with simulated workers on a virtual clock: how many workers one driver keeps busy.

Scheduler, runner and committer are those of a run. The time that they use is measured, and passes on the virtual
clock while workers work. Only workers are simulated: each shard takes some time, and some workers die.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import random
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.work import Done, Ledger, Outcome, Proposal, Shard, Split, StagedFile, Timings
from headrace.driver.ports import RunPorts
from headrace.errors import WorkerDied
from headrace.output.commit import ShardCommitter
from headrace.output.layout import Output, open_output
from headrace.output.recover import begin
from headrace.plan.physical import SavedPlan
from headrace.session.build_runner import Resumed, RunSpec, build_runner

SCHEMA_AFTER = 0.1  # of a shard's time: until its first rows propose a schema


@dataclass(frozen=True, slots=True)
class Load:
    """What is simulated.

    ``seconds`` is what a shard takes, 20 % more or less; ``deaths`` the share of attempts during which the worker
    dies, to be replaced after ``restart_after`` seconds; ``per_call`` the seconds of the driver that an engine uses
    for a call and its answer.
    """

    workers: int
    shards: int
    seconds: float = 10.0
    deaths: float = 0.001
    restart_after: float = 5.0
    per_call: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Driven:
    """The result of a simulation: the share of time in which workers were ``busy``, and the virtual ``seconds``."""

    busy: float
    seconds: float
    driver_seconds: float
    deaths: int
    rows: int

    def per_shard(self, load: Load) -> float:
        """Seconds of the driver for each shard, the engine's left out."""
        return self.driver_seconds / load.shards


def drive(load: Load, folder: Path) -> Driven:
    """Carry a run out in ``folder``, whose parts are empty files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     driven = drive(Load(workers=10, shards=200), Path(folder) / "out")
    >>> driven.rows, driven.busy > 0.8
    (200, True)
    """
    shards = [Shard(i, (Split(0, i, i + 1, 1),)) for i in range(load.shards)]
    committer, output = _committer(shards, folder)
    world = _World(load, Path(committer.folder) / "staging")
    try:
        spec = RunSpec(
            shards=shards,
            merge=lambda merged, proposed: (proposed, True),
            resumed=Resumed(done=committer.state.done),
        )
        runner = build_runner(spec, committer, RunPorts(clock=world.clock, inbox=_Inbox(world)))
        world.go_on()
        runner.run([_Pool(world)])
        world.stop()
        return Driven(
            world.worked / world.lived(),
            world.now,
            world.driver_seconds,
            world.deaths,
            committer.state.ledger.written,
        )
    finally:
        committer.close()
        output.close()


def _committer(shards: list[Shard], folder: Path) -> tuple[ShardCommitter, Output]:
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet

    output = open_output(folder)
    plan = SavedPlan("simulate", "{}", {}, [], shards, 0.0, "0")
    sink = FileSink(str(folder), Parquet())
    return begin(output, plan, sink, durability="power", pointer="current"), output


@dataclass(slots=True)
class _Worker:
    number: int
    calls: deque[tuple[str, Any, Future[Any]]] = field(default_factory=deque)
    busy_since: float = -1.0  # below 0: it has nothing to do


class _World:
    """The simulation: the clock, the workers, and what happens when."""

    def __init__(self, load: Load, staging: Path) -> None:
        self.load = load
        self.now = 0.0
        self.worked = 0.0
        self.driver_seconds = 0.0
        self.deaths = 0
        self.workers: dict[int, _Worker] = {}
        self.messages: deque[Any] = deque()
        self._staging = staging
        self._random = random.Random(load.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._ended: list[float] = []
        self._mark = 0.0
        for _ in range(load.workers):
            self._start_worker()

    def clock(self) -> float:
        return self.now

    def lived(self) -> float:
        """Return the seconds of all workers together, with those in which dead workers were not replaced yet."""
        return self.load.workers * self.now

    # ------------------------------------------------------------ time

    def go_on(self) -> None:
        """Measure the time of the driver from now on."""
        self._mark = time.perf_counter()

    def stop(self) -> None:
        """Stop measuring: the time that the driver used passes on the virtual clock."""
        took = time.perf_counter() - self._mark
        self.driver_seconds += took
        self.now += took
        self._catch_up()

    def wait(self, most: float) -> None:
        """Let time pass until something happens, but no more than ``most`` seconds."""
        self.now = min(self.now + most, self._events[0][0]) if self._events else self.now + most
        self._catch_up()

    def _catch_up(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            at, _, happen = heapq.heappop(self._events)
            late, self.now = self.now, at  # workers do not wait for the driver
            happen()
            self.now = late

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), happen))

    # ------------------------------------------------------------ workers

    def _start_worker(self) -> None:
        number = next(self._numbers)
        self.workers[number] = _Worker(number)

    def call(self, number: int, method: str, what: Any, future: Future[Any]) -> None:
        """Call a worker."""
        self.now += self.load.per_call
        worker = self.workers.get(number)
        if worker is None:
            future.set_exception(WorkerDied(f"worker {number} is gone"))
            return
        worker.calls.append((method, what, future))
        if worker.busy_since < 0:
            self._begin(worker)

    def _begin(self, worker: _Worker) -> None:
        if not worker.calls:
            worker.busy_since = -1.0
            return
        worker.busy_since = self.now
        method, what, _ = worker.calls[0]
        seconds = self.load.seconds * self._random.uniform(0.8, 1.2)
        if method == "proceed":
            seconds *= 1 - SCHEMA_AFTER
        elif what.schema is None:
            seconds *= SCHEMA_AFTER
        dies = self._random.random() < self.load.deaths
        self._after(seconds, lambda: self._die(worker) if dies else self._answer(worker))

    def _answer(self, worker: _Worker) -> None:
        self.worked += self.now - worker.busy_since
        method, what, future = worker.calls.popleft()
        self._begin(worker)
        outcome: Outcome
        if method == "attempt" and what.schema is None:
            outcome = Proposal(what.shard.index, what.attempt, b"schema")
        else:
            shard, attempt = (what.shard.index, what.attempt) if method == "attempt" else what
            name = f"part-{shard:07d}-simulate.parquet"
            staged = f"{name}-{attempt}.staged"
            (self._staging / staged).touch()
            file = StagedFile(staged, name, 1, 0, 0)
            outcome = Done(shard, attempt, (file,), Ledger(1, 1), Timings())
        future.set_result(outcome)

    def _die(self, worker: _Worker) -> None:
        self.deaths += 1
        self.worked += self.now - worker.busy_since
        del self.workers[worker.number]
        for _, _, future in worker.calls:
            future.set_exception(WorkerDied("the simulation killed it"))
        self._after(self.load.restart_after, self._start_worker)


class _Inbox:
    """Where the runner waits; only simulated time passes meanwhile."""

    def __init__(self, world: _World) -> None:
        self._world = world

    def put(self, message: Any) -> None:
        self._world.messages.append(message)

    def get(self, *, timeout: float) -> Any:
        return self._next(timeout)

    def get_nowait(self) -> Any:
        return self._next(0.0)

    def _next(self, timeout: float) -> Any:
        world = self._world
        world.stop()
        try:
            if not world.messages and timeout:
                world.wait(timeout)
            if not world.messages:
                raise queue.Empty
            return world.messages.popleft()
        finally:
            world.go_on()


class _Pool:
    """See ``Pool``."""

    def __init__(self, world: _World) -> None:
        self._world = world

    def loads(self) -> dict[int, int]:
        return {number: len(worker.calls) for number, worker in self._world.workers.items()}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        assert worker is not None
        future: Future[Any] = Future()
        future.worker = worker  # type: ignore[attr-defined]
        what: Any = args[0] if method == "attempt" else args[:2]
        self._world.call(worker, method, what, future)
        return future

    def feed(self, worker: int, *args: Any) -> None:
        raise NotImplementedError

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        raise NotImplementedError

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        raise NotImplementedError

    def dump(self) -> None:
        """Simulated workers have no stacks."""

    def memory(self) -> dict[int, int]:
        return {}

    def close(self, *, kill: bool = True) -> None:
        """Nothing was started."""
