"""A run in which nobody is at work any more ends with an error instead of hanging."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from millrace.core.ports import PoolSpec
from millrace.core.work import Shard
from millrace.engines.local import LocalEngine
from millrace.errors import ShardFailed, Stalled, WorkerDied
from millrace.run.runner import Runner, Tally
from millrace.run.scheduler import Scheduler


class Silent:
    """A pool that takes calls, forgets them, and is asked for its stacks."""

    dumped = 0

    def __init__(self, busy: int) -> None:
        self.busy = busy

    def loads(self) -> dict[int, int]:
        return {0: self.busy}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        return Future()

    def kill(self, worker: int, reason: str) -> None:
        raise AssertionError("nobody is overdue")

    def dump(self) -> None:
        self.dumped += 1


def test_silence_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.run.runner.DUMP", 0.0)
    pool = Silent(busy=0)
    scheduler = Scheduler([Shard(0, ())], merge=lambda known, proposed: (proposed, True))
    runner = Runner(scheduler, Tally(), stall_timeout=0.3)
    with pytest.raises(Stalled, match="no worker is at work, and no shard can begin"):
        runner.run(pool)  # type: ignore[arg-type]
    assert pool.dumped == 1


class Dying(Silent):
    """A pool whose worker ends after a long silence; the news of it comes a moment later."""

    def __init__(self, looks: int) -> None:
        super().__init__(busy=0)
        self.looks = looks
        self.calls: list[Future[Any]] = []

    def loads(self) -> dict[int, int]:
        self.looks -= 1
        if self.looks < -3 and self.calls:
            self.calls.pop().set_exception(WorkerDied("killed by SIGKILL"))
        return {0: len(self.calls) if self.looks >= 0 else 0}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        call: Future[Any] = Future()
        call.worker = 0  # type: ignore[attr-defined]
        self.calls.append(call)
        return call


def test_a_worker_that_ends_after_a_long_silence_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.run.runner.TICK", 0.05)
    scheduler = Scheduler([Shard(0, ())], merge=lambda known, proposed: (proposed, True), max_attempts=1)
    runner = Runner(scheduler, Tally(), stall_timeout=0.3)
    with pytest.raises(ShardFailed, match="killed by SIGKILL"):
        runner.run(Dying(looks=20))  # type: ignore[arg-type]


class Waits:
    """Sits in a call until it is told to go on."""

    def __init__(self, context: Any) -> None:
        self.go = threading.Event()

    def sit_here(self) -> bool:
        return self.go.wait(30)

    def feed(self) -> None:
        self.go.set()

    def close(self) -> None:
        pass


def test_workers_print_their_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    engine = LocalEngine()
    pool = engine.start(PoolSpec("stage 1", partial(Waits)), lambda worker, note: None)
    try:
        pool.submit("close").result(30)
        (worker,) = pool.loads()
        sitting = pool.submit("sit_here")
        seen = ""
        while "sit_here" not in seen:
            pool.dump()
            seen += capfd.readouterr().err
        pool.feed(worker)
        assert sitting.result(30) is True
    finally:
        engine.close(kill=True)
