"""A run in which nobody works any more ends with an error instead of hanging."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from headrace.core.engine_ports import PoolSpec
from headrace.driver.policies.workers import DUMP, StallDetector
from headrace.driver.policy import DumpStacks, EndRun
from headrace.engines.local.pool import LocalEngine

from .views import FakeView


def after(detector: StallDetector, view: FakeView) -> list[str]:
    """Return the kinds of the actions that a detector wants."""
    return [type(action).__name__ for action in detector.after_schedule(view)]


def test_a_long_silence_in_which_nobody_works_ends_the_run() -> None:
    detector = StallDetector(10.0)
    assert after(detector, FakeView(silence=0.0)) == []
    assert after(detector, FakeView(silence=9.9)) == []
    dump, end = detector.after_schedule(FakeView(silence=10.0))
    assert dump == DumpStacks(DUMP)
    assert isinstance(end, EndRun) and end.error.kind == "Stalled"
    assert (
        "Nothing has happened for 10 s, no worker is at work, and nothing more can begin."
        in end.error.message
    )


def test_a_worker_at_work_is_no_stall_however_long_it_takes() -> None:
    detector = StallDetector(10.0)
    assert after(detector, FakeView(silence=100.0, calls=[{0: 1}])) == []
    assert after(detector, FakeView(silence=109.0)) == [], "the silence counts from then on"
    assert after(detector, FakeView(silence=110.0)) == ["DumpStacks", "EndRun"]


def test_an_attempt_that_waits_for_a_block_is_not_at_work() -> None:
    view = FakeView(silence=10.0, calls=[{0: 0}, {1: 1}], attempts_waiting=1)
    assert after(StallDetector(10.0), view) == ["DumpStacks", "EndRun"]


def test_a_message_ends_a_silence() -> None:
    detector = StallDetector(10.0)
    assert after(detector, FakeView(silence=9.0)) == []
    assert after(detector, FakeView(silence=18.0, messages=1)) == []
    assert after(detector, FakeView(silence=27.0, messages=1)) == []
    assert after(detector, FakeView(silence=28.0, messages=1)) == ["DumpStacks", "EndRun"]


def test_a_run_that_can_begin_nothing_ends_at_once() -> None:
    dump, end = StallDetector(10.0).after_schedule(FakeView(nothing_begins=True))
    assert dump == DumpStacks(0.0) and isinstance(end, EndRun)


def test_a_paused_run_does_not_stall() -> None:
    detector = StallDetector(10.0)
    assert after(detector, FakeView(silence=99.0, holds=True)) == []
    assert after(detector, FakeView(silence=108.0)) == [], "the silence counts from then on"
    assert after(detector, FakeView(silence=109.0)) == ["DumpStacks", "EndRun"]


def test_a_finished_run_does_not_stall() -> None:
    assert after(StallDetector(10.0), FakeView(silence=99.0, nothing_begins=True, finished=True)) == []


class Waits:
    """Sits in a call until it is told to go on."""

    def __init__(self, context: Any) -> None:
        self.go = threading.Event()

    def sit_here(self) -> bool:
        return self.go.wait()

    def feed(self) -> None:
        self.go.set()

    def close(self) -> None:
        pass


def test_workers_print_their_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    engine = LocalEngine()
    pool = engine.start(PoolSpec("stage 1", partial(Waits)), lambda worker, note: None)
    try:
        pool.submit("close").result()
        (worker,) = pool.loads()
        sitting = pool.submit("sit_here")
        seen = ""
        while "sit_here" not in seen:
            pool.dump()
            seen += capfd.readouterr().err
        pool.feed(worker)
        assert sitting.result() is True
    finally:
        engine.close(kill=True)
