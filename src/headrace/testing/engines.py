"""What every engine and its pools promise, as tests. A subclass gives the engine, and says what it can do."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.engine_ports import Engine, Pool, PoolSpec, WorkerContext
from headrace.core.messages import BlocksFreed
from headrace.core.work import BlockRef
from headrace.engines.pool import WorkerPool
from headrace.errors import WorkerDied
from headrace.testing.steps import check, same

WITHIN = 300.0  # seconds: of ten pools on two busy cores, too


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true; engines may place workers, and end them, in their own time."""
    deadline = time.monotonic() + WITHIN
    while not true():
        check(time.monotonic() < deadline, f"what the test waits for was not so within {WITHIN:.0f} s")
        time.sleep(0.01)


def answers(pool: Pool, expected: Any, method: str, *args: Any, worker: int | None = None) -> None:
    """Check what a call gives."""
    found = pool.submit(method, *args, worker=worker).result(WITHIN)
    same(found, expected, f"the answer to {method!r}")


class Hosted:
    """What the contract's workers host."""

    def __init__(self, note: str, context: WorkerContext) -> None:
        self._context = context
        self._note = note
        self._seen: list[Any] = []
        self._aside = ThreadPoolExecutor(1)
        self._given: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._held: list[Any] = []
        if note == "broken":
            raise LookupError("cannot be made")

    def echo(self, value: Any) -> Any:
        """Return ``value``, and remember it."""
        self._seen.append(value)
        return value

    def seen(self) -> list[Any]:
        """Return what was echoed, in order."""
        return self._seen

    def about(self) -> tuple[int, int, int]:
        """Return the worker's number, its threads and its process."""
        return self._context.worker, self._context.threads, os.getpid()

    def notify(self, value: Any) -> str:
        """Send a note, then answer."""
        self._context.notify(value)
        return "notified"

    def later(self, value: Any) -> Future[Any]:
        """Answer from another thread, while the next call is at work."""
        return self._aside.submit(lambda: value)

    def fail(self, kind: type[Exception], words: str) -> None:
        """Raise."""
        raise kind(words)

    def fail_oddly(self) -> None:
        """Raise what no other process could make again."""

        class Odd(Exception):
            def __init__(self, one: Any, two: Any) -> None:
                super().__init__("odd one out")

        raise Odd(threading.Lock(), 2)

    def die(self) -> None:
        """End the process."""
        os._exit(3)

    def feed(self, *args: Any) -> None:
        """Receive what is fed while calls run."""
        self._given.put(args)

    def next_fed(self) -> tuple[Any, ...]:
        """Wait for the next thing that is fed."""
        return self._given.get(timeout=WITHIN)

    def share(self, value: int, rows: int) -> BlockRef:
        """Share a batch of ``rows`` times ``value`` with other workers."""
        batch = pa.record_batch({"value": np.full(rows, value, np.int64)})
        return self._context.share(batch.schema, [batch])

    def total(self, ref: BlockRef, hold: bool = False) -> int:
        """Add up a block; ``hold`` it, or release it."""
        batches = self._context.fetch(ref)
        if hold:
            self._held.append(batches)
        return int(sum(to_numpy(batch.column(0)).sum() for batch in batches))

    def held_total(self) -> int:
        """Add up the blocks that are held, as they are now; then release them."""
        held, self._held = self._held, []
        return int(sum(to_numpy(batch.column(0)).sum() for batches in held for batch in batches))

    def total_fed(self) -> int:
        """Wait for a block that is fed, and add it up."""
        return self.total(self.next_fed()[0])

    def close(self) -> None:
        """Write a file that says that it was closed."""
        self._aside.shutdown()
        if os.path.isdir(self._note):
            with open(os.path.join(self._note, f"closed-{self._context.worker}"), "w"):
                pass


class Waits:
    """The first of two workers has this at once; the other waits for what never comes."""

    def __init__(self, folder: Path, context: WorkerContext) -> None:
        self._folder = folder
        try:
            (folder / "first").mkdir()
        except FileExistsError:
            self.wait()
        context.notify("made")

    def made(self) -> str:
        """Answer."""
        return "made"

    def wait(self) -> None:
        """Never answer."""
        while self._folder.exists():
            time.sleep(0.01)

    def close(self) -> None:
        """Leave a file."""
        (self._folder / "closed").touch()


class EngineContract:
    """Subclass it, override ``make``, and pytest runs every promise.

    ``processes`` says that workers are processes (they can die); ``sizes`` that a pool has the size asked for;
    ``blocks`` that there may be several stages, between which blocks travel.
    """

    processes = True
    sizes = True
    blocks = True

    def make(self) -> Engine:
        """Return a fresh engine."""
        raise NotImplementedError

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        """An engine, closed at the end."""
        engine = self.make()
        yield engine
        engine.close()

    @pytest.fixture
    def notes(self) -> list[tuple[int, Any]]:
        """What workers sent."""
        return []

    @pytest.fixture
    def start(self, engine: Engine, notes: list[tuple[int, Any]]) -> Callable[..., Pool]:
        """Start a pool."""

        def start(note: str = "", size: int = 2) -> Pool:
            spec = PoolSpec("contract", partial(Hosted, note), size, threads=3)
            pool = engine.start(spec, lambda worker, message: notes.append((worker, message)))
            if self.sizes:
                until(lambda: len(pool.loads()) == size)
            return pool

        return start

    def test_calls_are_answered(self, start: Callable[..., Pool]) -> None:
        pool = start()
        for value in (1, "ü", {"a": [None]}, b"x" * 10_000_000):
            answers(pool, value, "echo", value)

    def test_a_worker_knows_who_it_is(self, start: Callable[..., Pool]) -> None:
        pool = start()
        for worker in pool.loads():
            future = pool.submit("about", worker=worker)
            number, threads, process = future.result(WITHIN)
            same((number, threads), (worker, 3), "the worker's number and its threads")
            same(future.worker, worker, "the worker that the future names")  # type: ignore[attr-defined]
            same(process != os.getpid(), self.processes, "whether a worker is another process")

    def test_one_worker_keeps_the_order(self, start: Callable[..., Pool]) -> None:
        pool = start()
        worker = next(iter(pool.loads()))
        for value in range(100):
            pool.submit("echo", value, worker=worker)
        answers(pool, list(range(100)), "seen", worker=worker)

    def test_loads_go_back_to_zero(self, start: Callable[..., Pool]) -> None:
        pool = start()
        for future in [pool.submit("echo", value) for value in range(10)]:
            future.result(WITHIN)
        same(set(pool.loads().values()), {0}, "the loads after all calls")

    @pytest.mark.parametrize("kind", [ValueError, WorkerDied, ZeroDivisionError])
    def test_an_exception_is_a_result(self, start: Callable[..., Pool], kind: type[Exception]) -> None:
        pool = start(size=1)
        with pytest.raises(kind, match="of the user"):
            pool.submit("fail", kind, "of the user").result(WITHIN)
        with pytest.raises(Exception, match="odd one out"):
            pool.submit("fail_oddly").result(WITHIN)
        with pytest.raises(AttributeError, match="no_such_method"):
            pool.submit("no_such_method").result(WITHIN)
        answers(pool, 1, "echo", 1)

    def test_notes_arrive_before_the_answer(self, start: Callable[..., Pool], notes: list[Any]) -> None:
        pool = start()
        for value in range(3):
            future = pool.submit("notify", value)
            same(future.result(WITHIN), "notified", "the answer")
            same(notes[-1:], [(future.worker, value)], "the last note at that time")  # type: ignore[attr-defined]

    def test_an_answer_may_come_later(self, start: Callable[..., Pool]) -> None:
        pool = start(size=1)
        first, second = pool.submit("later", 1), pool.submit("echo", 2)
        same((first.result(WITHIN), second.result(WITHIN)), (1, 2), "the two answers")

    def test_what_cannot_be_made_fails_every_call(self, start: Callable[..., Pool]) -> None:
        with pytest.raises(LookupError, match="cannot be made"):
            start("broken", size=1).submit("echo", 1).result(WITHIN)

    def test_closing_closes_what_is_hosted(
        self, start: Callable[..., Pool], engine: Engine, tmp_path: Any
    ) -> None:
        pool = start(str(tmp_path))
        ids = {pool.submit("about", worker=worker).result(WITHIN)[2] for worker in pool.loads()}
        before = [psutil.Process(pid) for pid in ids - {os.getpid()}]
        same(bool(before), self.processes, "whether workers are other processes")
        engine.close()
        engine.close()
        pool.close()
        same(len(list(tmp_path.glob("closed-*"))), 2 if self.sizes else 1, "the objects that were closed")
        until(lambda: not any(process.is_running() for process in before))

    @pytest.mark.parametrize("way", ["close", "resize", "at a call"])
    def test_nobody_waits_for_the_end_of_a_worker_that_is_not_idle(
        self, way: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not self.processes:
            pytest.skip("this engine's worker is this process")
        monkeypatch.setattr(WorkerPool, "end_within", 60.0)
        told: queue.SimpleQueue[int] = queue.SimpleQueue()
        spec = PoolSpec("waits", partial(Waits, tmp_path), 2, 1)
        pool = engine.start(spec, lambda worker, message: told.put(worker) if message == "made" else None)
        ready = told.get(timeout=WITHIN)
        answers(pool, "made", "made", worker=ready)
        until(lambda: len(pool.loads()) == 2)
        began = time.monotonic()
        if way == "resize":
            pool.resize(1, keep=[ready])
            same([*pool.loads()], [ready], "the workers after resize(1)")
        elif way == "at a call":
            pool.submit("wait", worker=ready)
        engine.close()
        check(
            time.monotonic() - began < WorkerPool.end_within, "the end waited for a worker that is not idle"
        )
        same(
            (tmp_path / "closed").exists(), way != "at a call", "whether the idle worker closed what it hosts"
        )

    def test_pools_have_the_size_asked_for(self, start: Callable[..., Pool]) -> None:
        if not self.sizes:
            pytest.skip("this engine has one worker, always")
        pool = start(size=1)
        pool.resize(3)
        until(lambda: len(pool.loads()) == 3)
        for worker in pool.loads():
            same(pool.submit("about", worker=worker).result(WITHIN)[0], worker, "the worker's number")
        pool.resize(1)
        same(len(pool.loads()), 1, "the workers after resize(1)")
        answers(pool, 1, "echo", 1)

    def test_a_lost_worker_is_an_answer_and_is_replaced(self, start: Callable[..., Pool]) -> None:
        if not self.processes:
            pytest.skip("this engine's worker is this process")
        pool = start()
        victim, other = sorted(pool.loads())
        lost = [pool.submit("die", worker=victim), pool.submit("echo", 1, worker=victim)]
        for future in lost:
            with pytest.raises(WorkerDied):
                future.result(WITHIN)
        until(lambda: len(pool.loads()) == 2)  # somebody takes the place of the worker that died
        check(victim not in pool.loads(), f"worker {victim} died, and is among the workers")
        check(other in pool.loads(), f"worker {other} lives, and is not among the workers")
        (new,) = set(pool.loads()) - {other}
        answers(pool, [], "seen", worker=new)
        answers(pool, 2, "echo", 2, worker=other)
        with pytest.raises(WorkerDied):
            pool.submit("echo", 3, worker=victim).result(WITHIN)

    def test_a_worker_that_is_ended_is_replaced_or_missed(self, start: Callable[..., Pool]) -> None:
        if not self.processes:
            pytest.skip("this engine's worker is this process")
        pool = start(size=2)
        for replace, left in ((True, 2), (False, 1), (False, 1)):
            victim = max(pool.loads())
            waiting = pool.submit("next_fed", worker=victim)
            pool.kill(victim, "it takes too much", replace=replace)
            with pytest.raises(WorkerDied, match="it takes too much"):
                waiting.result(WITHIN)
            until(lambda: len(pool.loads()) == left and victim not in pool.loads())  # noqa: B023
        answers(pool, 1, "echo", 1)

    def test_pools_report_the_memory_of_their_workers(self, start: Callable[..., Pool]) -> None:
        pool = start(size=2)
        for worker in pool.loads():
            pool.submit("echo", 1, worker=worker).result(WITHIN)
        memory = pool.memory()
        if memory:
            same(set(memory), set(pool.loads()), "the workers whose memory is reported")
            check(min(memory.values()) >= 0, f"a worker has less than no memory: {memory}")

    # ------------------------------------------------------------ blocks

    def test_what_is_fed_arrives_in_order_and_at_once(self, start: Callable[..., Pool]) -> None:
        pool = start(size=1)
        (worker,) = pool.loads()
        for value in range(3):
            pool.feed(worker, value, "x")
        found = [pool.submit("next_fed").result(WITHIN) for _ in range(3)]
        same(found, [(value, "x") for value in range(3)], "what was fed")
        pool.feed(worker + 1_000_000 if self.sizes else worker, "nobody is there")
        if self.processes:
            waiting = pool.submit("next_fed", worker=worker)
            pool.feed(worker, "while a call is at work")
            same(waiting.result(WITHIN), ("while a call is at work",), "what was fed to a worker at work")

    def test_blocks_go_from_worker_to_worker(
        self, engine: Engine, start: Callable[..., Pool], notes: list[tuple[int, Any]]
    ) -> None:
        if not self.blocks:
            pytest.skip("a plan has one stage on this engine")
        makers, readers = start(size=1), start(size=1)
        (reader,) = readers.loads()
        numbers = []
        for value in range(1, 8):
            ref = makers.submit("share", value, 100_000).result(WITHIN)
            check(ref.size >= 800_000, f"a block of 800,000 bytes says that it has {ref.size:,}")
            numbers.append(ref.number)
            if value % 2:
                answers(readers, 100_000 * value, "total", ref)
            else:
                readers.feed(reader, ref)
                answers(readers, 100_000 * value, "total_fed")
        answers(readers, 1, "echo", 1)
        freed = [number for _, note in notes if isinstance(note, BlocksFreed) for number in note.numbers]
        same(sorted(freed), sorted(numbers), "the blocks that are reported as freed, each once")

    def test_a_block_stays_as_long_as_somebody_looks_at_it(
        self, engine: Engine, start: Callable[..., Pool], notes: list[tuple[int, Any]]
    ) -> None:
        if not self.blocks:
            pytest.skip("a plan has one stage on this engine")
        makers, readers = start(size=1), start(size=1)
        kept = makers.submit("share", 1, 50_000).result(WITHIN)
        readers.submit("total", kept, True).result(WITHIN)
        for value in range(2, 9):
            ref = makers.submit("share", value, 50_000).result(WITHIN)
            answers(readers, 50_000 * value, "total", ref)
        dropped = makers.submit("share", 9, 50_000).result(WITHIN)
        engine.release(dropped)
        makers.submit("share", 10, 50_000).result(WITHIN)
        answers(readers, 50_000, "held_total")

    def test_a_block_that_is_kept_may_be_read_twice(
        self, engine: Engine, start: Callable[..., Pool], notes: list[tuple[int, Any]]
    ) -> None:
        if not self.blocks:
            pytest.skip("a plan has one stage on this engine")
        makers, readers = start(size=1), start(size=1)
        ref = makers.submit("share", 3, 100_000).result(WITHIN)
        engine.hold(ref)
        for _ in range(2):
            early = [
                note for _, note in notes if isinstance(note, BlocksFreed) and ref.number in note.numbers
            ]
            same(early, [], "notes that a block is freed that is held")
            answers(readers, 300_000, "total", ref)
            for value in range(3):  # would lie where it lay
                makers.submit("share", value, 100_000).result(WITHIN)
        answers(readers, 1, "echo", 1)
        freed = [number for _, note in notes if isinstance(note, BlocksFreed) for number in note.numbers]
        same(freed, [ref.number], "the blocks that are reported as freed")
        unread = makers.submit("share", 4, 100_000).result(WITHIN)
        engine.hold(unread)
        engine.release(unread)

    def test_a_block_outlives_its_maker(self, start: Callable[..., Pool]) -> None:
        if not self.processes:
            pytest.skip("this engine's worker is this process")
        makers, readers = start(size=1), start(size=1)
        early, late = (makers.submit("share", value, 200_000).result(WITHIN) for value in (1, 2))
        readers.submit("total", early, True).result(WITHIN)
        with pytest.raises(WorkerDied):
            makers.submit("die").result(WITHIN)
        while not makers.loads():
            time.sleep(0.01)
        check(makers.submit("share", 3, 200_000).result(WITHIN), "a new worker makes no block")
        answers(readers, 400_000, "total", late)
        answers(readers, 200_000, "held_total")

    def test_a_dead_reader_holds_nothing(
        self, start: Callable[..., Pool], notes: list[tuple[int, Any]]
    ) -> None:
        if not self.processes:
            pytest.skip("this engine's worker is this process")
        makers, readers = start(size=1), start(size=1)
        ref = makers.submit("share", 1, 200_000).result(WITHIN)
        readers.submit("total", ref, True).result(WITHIN)
        with pytest.raises(WorkerDied):
            readers.submit("die").result(WITHIN)
        until(lambda: any(isinstance(note, BlocksFreed) and ref.number in note.numbers for _, note in notes))

    def test_two_pools_side_by_side(self, start: Callable[..., Pool]) -> None:
        left, right = start(size=1), start(size=1)
        answers(left, "l", "echo", "l")
        answers(right, [], "seen")
        left.close()
        answers(right, "r", "echo", "r")
