"""What only worker processes of this machine do: they are killed while they start, and share memory."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread, current_thread, get_native_id
from threading import enumerate as active_threads
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.engine_ports import PoolSpec, WorkerContext
from headrace.core.work import BlockRef
from headrace.engines.local.pool import SPARE, LocalEngine, LocalPool, SlotRegistry, spare_of
from headrace.engines.local.process import Listener, WorkerProcess
from headrace.engines.local.slots import SlotAllocator, SlotMapping
from headrace.errors import NeverReady, WorkerDied
from headrace.testing.engines import Hosted


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    engine = LocalEngine(budget=getattr(request, "param", None))
    yield engine
    engine.close(kill=True)


def with_process(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.01)
    return {**batch, "process": np.full(len(batch["id"]), os.getpid())}


def starts_forever(fifo: str, context: WorkerContext) -> Any:
    """Never come to an end."""
    with open(fifo):
        pass


def test_workers_that_are_killed_as_they_start(engine: LocalEngine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    pool = engine.start(
        PoolSpec("stage 1", partial(starts_forever, str(tmp_path / "fifo")), 2), lambda *note: None
    )
    lost = pool.submit("anything")
    with pytest.raises(WorkerDied) as caught:
        while True:
            for worker in pool.workers():
                worker.process.kill()
            pool.loads()
    said = str(caught.value)
    assert said.startswith(
        "3 workers of stage 1 in a row ended before they could work: killed by SIGKILL while "
    )
    assert "while starting" in said or "while importing" in said
    assert "see `dmesg`" in said and said.endswith(".")
    with pytest.raises(NeverReady, match="killed by SIGKILL while"):
        lost.result()


# ---------------------------------------------------------------- who started a worker


def in_a_thread_that_ends(act: Callable[[], Any]) -> Any:
    """Call ``act`` in a thread of its own; return what it returned, when the thread is gone from the kernel, too."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append((act(), get_native_id())))
    thread.start()
    thread.join()
    while sys.platform == "linux" and Path(f"/proc/self/task/{found[0][1]}").exists():
        time.sleep(0.001)
    return found[0][0]


def processes(pool: LocalPool) -> dict[int, int]:
    """Return the process of each worker, as it says itself."""
    return {worker: pool.submit("about", worker=worker).result()[2] for worker in pool.loads()}


def test_workers_outlive_the_thread_that_asked_for_them(engine: LocalEngine) -> None:
    spec = PoolSpec("stage 1", partial(Hosted, ""), 1)

    def begin() -> tuple[LocalPool, dict[int, int]]:
        pool = engine.start(spec, lambda *note: None)
        return pool, processes(pool)

    def grow() -> dict[int, int]:
        pool.resize(2)
        return processes(pool)

    pool, first = in_a_thread_that_ends(begin)
    assert processes(pool) == first
    grown = in_a_thread_that_ends(grow)
    assert processes(pool) == grown and first.items() < grown.items()


def test_what_a_worker_had_is_closed_by_the_thread_that_waits_on_it(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: queue.SimpleQueue[str] = queue.SimpleQueue()
    release = WorkerProcess.release

    def told(worker: WorkerProcess) -> None:
        release(worker)
        closed.put(current_thread().name)

    monkeypatch.setattr(WorkerProcess, "release", told)
    pool = engine.start(PoolSpec("stage 1", partial(Hosted, ""), 1), lambda *note: None)
    for _ in range(3):
        pool.resize(3)
        pool.resize(1)
        assert {closed.get(), closed.get()} == {"headrace-pool"}
    assert pool.submit("echo", 1).result() == 1
    engine.close()
    assert closed.get() != "headrace-pool" and closed.empty()


def test_a_reader_may_go_on_in_another_thread() -> None:
    data = hr.range(20_000).with_options(engine="local", workers=2, shard_rows=1024)
    batches = iter(data.map_batches(with_process, batch_size=256).iter_batches(batch_size=256))
    found = [in_a_thread_that_ends(lambda: next(batches))]
    found += batches
    assert [int(i) for batch in found for i in batch["id"]] == list(range(20_000))
    assert len({int(i) for batch in found for i in batch["process"]}) <= 2, "nobody was replaced"


def test_nothing_is_left_of_a_closed_engine() -> None:
    before = set(active_threads())
    engine = LocalEngine(1)
    pool = engine.start(PoolSpec("stage 1", partial(Hosted, ""), 2), lambda *note: None)
    assert pool.submit("echo", 1).result() == 1
    engine.close()
    engine.close()
    assert set(active_threads()) == before


# ---------------------------------------------------------------- memory that workers share


def shared_memory() -> int:
    """Return the bytes of all blocks' memory that this process holds open."""
    held: dict[int, int] = {}
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(file).startswith("/memfd:headrace"):
                held[file.stat().st_ino] = file.stat().st_blocks * 512
    return sum(held.values())


@pytest.fixture
def pools(engine: LocalEngine) -> tuple[LocalPool, LocalPool]:
    """One worker that lays blocks, and one that reads them."""
    makers, readers = (
        engine.start(PoolSpec("stage", partial(Hosted, ""), 1), lambda *note: None) for _ in range(2)
    )
    return makers, readers


def lay_and_keep(pools: tuple[LocalPool, LocalPool], count: int, size: int) -> int:
    """Have blocks laid that are all in use at one time, then none; return how much memory they say they keep."""
    makers, readers = pools
    refs: list[BlockRef] = []
    for value in range(count):
        refs.append(makers.submit("share", value, size // 8).result())
        assert readers.submit("total", refs[-1], True).result() == value * (size // 8)
    assert makers.submit("echo", "all is told").result()
    assert readers.submit("held_total").result() == sum(range(count)) * (size // 8)
    assert readers.submit("echo", "all is told").result()
    return sum(ref.size for ref in refs)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("engine", "spare"), [(None, SPARE), (32 << 20, 4 << 20)], indirect=["engine"])
def test_slots_that_nobody_uses_are_given_back(pools: tuple[LocalPool, LocalPool], spare: int) -> None:
    before = shared_memory()
    most = 0
    for count, size in ((96, 1_000_000), (24, 4_000_000), (6, 16_000_000), (96, 1_000_000)):
        most = max(most, lay_and_keep(pools, count, size))
        assert shared_memory() - before <= most + spare
    for pool in pools:
        (worker,) = pool.workers()
        mapped = psutil.Process(worker.process.pid).memory_maps()
        assert sum(entry.rss for entry in mapped if "memfd:headrace" in entry.path) <= most + spare


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_block_counts_with_all_the_memory_that_it_keeps_in_use(pools: tuple[LocalPool, LocalPool]) -> None:
    makers, readers = pools
    before = shared_memory()
    big = makers.submit("share", 1, 500_000).result()
    readers.submit("total", big).result()
    small = makers.submit("share", 2, 400_000).result()
    assert small.slot == big.slot and small.size == big.size > 4_000_000
    assert shared_memory() - before == pytest.approx(small.size, abs=8192)
    tiny = makers.submit("share", 3, 1000).result()
    assert readers.submit("total", small).result() == 800_000
    again = makers.submit("share", 4, 1000).result()
    assert tiny.size == again.size < 10_000, "a small block does not keep a big slot from others"


@pytest.mark.parametrize(
    ("budget", "spare"), [(8, 1), (16 << 20, 2 << 20), (256 << 20, SPARE), (8 << 30, SPARE)]
)
def test_what_is_kept_to_spare_is_a_part_of_the_budget(budget: int, spare: int) -> None:
    assert spare_of(budget) == spare


class Post:
    """Two workers and a driver whose messages take their time, in the order in which each sent its own."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.registry = SlotRegistry()
        self.up: list[deque[tuple[Any, ...]]] = [deque(), deque()]
        self.down: list[deque[tuple[Any, ...]]] = [deque(), deque()]
        self.allocators = [SlotAllocator(owner, partial(self.announce, owner)) for owner in range(2)]
        self.known: dict[int, tuple[BlockRef, int]] = {}
        self.values = iter(range(1 << 30))
        self.most = 0

    def announce(self, owner: int, slot: int, fd: int) -> None:
        self.up[owner].append(("slot", slot, fd))

    def write(self, owner: int) -> None:
        value = next(self.values)
        batch = pa.record_batch({"value": np.full(int(10 ** self.random.uniform(2, 6)), value)})
        self.up[owner].append(("block", self.allocators[owner].write(batch.schema, [batch]), value))

    def drop(self, owner: int) -> None:
        if self.known:
            ref, _ = self.known.pop(self.random.choice(list(self.known)))
            self.send_down(self.registry.drop(ref))

    def deliver_up(self, owner: int) -> None:
        if not self.up[owner]:
            return
        kind, *message = self.up[owner].popleft()
        if kind == "slot":
            self.registry.add_slot(owner, *message)
        elif kind == "block":
            self.registry.add(message[0])
            self.known[message[0].number] = message[0], message[1]
            self.most = max(self.most, sum(ref.size for ref, _ in self.known.values()))
        else:
            self.registry.slot_returned(owner, *message)
        self.send_down([])

    def send_down(self, freed: list[BlockRef]) -> None:
        for ref in freed:
            self.down[ref.owner].append(("free", ref.slot))
        for owner, slot in self.registry.surplus():
            self.down[owner].append(("return slot", slot))

    def deliver_down(self, owner: int) -> None:
        if not self.down[owner]:
            return
        kind, slot = self.down[owner].popleft()
        (self.allocators[owner].free if kind == "free" else self.allocators[owner].return_slot)(slot)
        self.up[owner] += [("slot returned", *answer) for answer in self.allocators[owner].returned()]


def settle(post: Post) -> None:
    """Let every message arrive."""
    while any(post.up) or any(post.down):
        for owner in range(2):
            post.deliver_up(owner)
            post.deliver_down(owner)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("seed", range(6))
def test_slots_whatever_crosses_on_the_way(seed: int) -> None:
    before = shared_memory()
    post = Post(seed)
    for turn in range(1200):
        hoarding = 200 < turn % 600 < 500 and len(post.known) < 40
        act = post.random.choice([post.deliver_up, post.deliver_down, post.write if hoarding else post.drop])
        act(post.random.randrange(2))
        if turn % 600 == 599:
            settle(post)
    assert shared_memory() - before <= post.most + SPARE
    reading = SlotMapping()
    for ref, value in post.known.values():
        fd = post.registry.fd_to_send(ref, 9)
        if fd is not None:
            reading.map(ref.owner, ref.slot, os.dup(fd))
        (batch,) = reading.read(ref)
        assert set(batch.column(0).to_pylist()) == {value}
    post.registry.close()


def stopped(pool: LocalPool, preparing: bool = False) -> WorkerProcess:
    """Stop the one worker of a pool while it is at work."""
    worker = pool.workers()[0]
    if not preparing:
        pool.submit("about").result()
        pool.submit("next_fed")
    process = psutil.Process(worker.process.pid)
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)
    return worker


@pytest.mark.parametrize("preparing", [True, False])
@pytest.mark.parametrize("timeout", [300.0, 3.0])
def test_a_stopped_worker_is_given_up_when_its_time_is_over(
    engine: LocalEngine, tmp_path: Path, timeout: float, preparing: bool
) -> None:
    """The clock is the test's: by default it is five minutes, and 38 seconds more at most."""
    os.mkfifo(tmp_path / "fifo")
    factory = partial(starts_forever, str(tmp_path / "fifo")) if preparing else partial(Hosted, "")
    pool = engine.start(PoolSpec("stage 1", factory, 1, stall_timeout=1e6), lambda *note: None)
    worker = stopped(pool, preparing)
    pool.stall_timeout = timeout
    now = [worker.heard_at]
    listener = Listener(pool, clock=lambda: now[0])
    while not worker.kill_reason:
        now[0] += timeout / 8
        listener.end_suspended()
        assert now[0] - worker.heard_at <= timeout * 9 / 8
    assert now[0] - worker.heard_at >= timeout
    assert worker.process.wait() == -signal.SIGKILL


def test_a_worker_that_goes_on_a_moment_after_its_driver_is_kept(engine: LocalEngine) -> None:
    """Whoever stops the whole job, and lets it go on an hour later, finds the same workers."""
    pool = engine.start(PoolSpec("stage 1", partial(Hosted, ""), 1, stall_timeout=1e6), lambda *note: None)
    worker = stopped(pool)
    pool.stall_timeout = 300.0
    now = [worker.heard_at]
    listener = Listener(pool, clock=lambda: now[0])
    now[0] += 3_600
    listener.end_suspended()
    assert not worker.kill_reason
