"""Terminal, status, record and report tell one and the same of a run, and what they tell only grows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.core.events import (
    Event,
    RowsRead,
    RunFinished,
    RunStarted,
    ShardCommitted,
    ShardDivided,
    ShardRetried,
    Worked,
    WorkerLost,
    WorkerReady,
)
from millrace.core.work import Ledger, Timings
from millrace.observers.busy import Busy
from millrace.observers.human import count, duration, size
from millrace.observers.record import Record
from millrace.observers.report import figures
from millrace.observers.report.facts import facts
from millrace.observers.report.history import History, history, lines_of
from millrace.observers.tally import Tally
from millrace.outputs.following import State

from .histories import Time, described


@dataclass
class Run:
    """A made-up run, and all who watch it: a terminal's tally, a record, the summary's busy shares."""

    path: Path
    rows: int
    known: bool = True
    shards: int = 10
    time: Time = field(default_factory=Time)
    shown: list[tuple[int, float | None]] = field(default_factory=list)
    told: int = 0

    def begins(self, *, done: int = 0, workers: int = 2) -> None:
        self.record = Record(self.path, now=self.time, clock=self.time)
        self.busy, self.began = Busy(), self.time.now
        start = self.time.now
        per = self.rows // self.shards
        event = RunStarted(
            "abcd2345", "/out", self.shards, done, done * per, self.rows if self.known else -1, workers,
            done * per, 0, 0, done * 1000,
        )  # fmt: skip
        self.tally = Tally(event, start)
        self.tell(described(("map_batches(f)", workers), ("predict(Net)", 1), elapsed=0.0))
        self.tell(event)

    def tell(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.record.on_event(event)
            return
        self.busy.add(event, self.time.now)
        self.tally.add(event)
        self.record.on_event(event)
        self.shown.append((self.tally.rows, self.tally.share))

    def tick(self, seconds: float) -> None:
        self.time.now += seconds
        self.tally.look(self.time.now)
        self.record.tick()

    def ends(self, error: str = "", written: int = 0) -> RunFinished:
        seconds = self.time.now - self.began
        event = RunFinished(
            "abcd2345", "/out", Ledger(written, written), Timings(), written, 1, seconds, error,
            stages=self.busy.uses(seconds),
        )  # fmt: skip
        self.tell(event)
        self.record.close()
        return event

    def history(self) -> History:
        self.record._sample()
        self.record._tell_sums()
        self.record._write()
        return history(lines_of(self.path.read_bytes()))

    def status(self, *, alive: bool = True, success: Any = None) -> State:
        found = self.history()
        silent = self.time.now - found.drivers[-1].ended
        known = facts(found, output="/out", alive=alive, success=success)
        return State(found, known, self.path, silent if alive else 0.0)


moves = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "read", "commit", "commit", "retry", "lost", "divide", "wait"]),
        st.integers(0, 9),
        st.integers(0, 2),
        st.integers(0, 120),
    ),
    max_size=60,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(moves=moves, known=st.booleans(), done=st.integers(0, 3))
def test_nothing_that_is_shown_goes_back(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int, int, int]], known: bool, done: int
) -> None:
    run = Run(tmp_path_factory.mktemp("run") / "events", rows=1000, known=known)
    run.begins(done=done)
    committed = set(range(done))
    for what, shard, worker, rows in moves:
        if what == "read" and shard not in committed:
            run.tell(RowsRead(worker, shard, rows))  # more than there are: a stage before may have added some
        elif what == "commit" and shard not in committed:
            committed.add(shard)
            run.tell(ShardCommitted(shard, 0, Ledger(100, 100), 1000, Timings(0.1, 0.5)))
        elif what == "retry" and shard not in committed:
            run.tell(ShardRetried(shard, 1, "so it is"))
        elif what == "lost":
            run.tell(WorkerLost(worker, "so it is"))
        elif what == "divide" and shard not in committed:
            run.tell(ShardDivided(shard, 2))
        run.tick(rows / 40)
    assert [rows for rows, _ in run.shown] == sorted(rows for rows, _ in run.shown)
    shares = [share for _, share in run.shown if share is not None]
    assert shares == sorted(shares) and all(0 <= share <= 1 for share in shares)
    state = run.status()
    told = [rows for _, rows, _ in state.history.rows]
    assert told == sorted(told)
    whole = len(committed) * 100
    assert (state.history.read, state.history.written) == (whole, whole)
    assert (state.history.bytes, run.tally.bytes) == (len(committed) * 1000,) * 2
    assert state.facts.ledger.read == whole and state.facts.shards[0] == len(committed) == run.tally.shards
    assert state.rows == run.tally.rows


def steady(run: Run, seconds: int, shards: range) -> None:
    """Let two workers work evenly."""
    for second in range(seconds):
        shard = shards[min(second // 5, len(shards) - 1)]
        run.tell(RowsRead(0, shard, 20 * (second % 5 + 1)))
        run.tick(1.0)
        if second % 5 == 4:
            run.tell(Worked(0, 0, shard, 0, 5.0, "done", 100, Timings(1.0, 2.0, 0.0, 1.0)))
            run.tell(Worked(1, 2, shard, 0, 2.0, "done", 100, Timings(0.0, 2.0)))
            run.tell(ShardCommitted(shard, 0, Ledger(100, 100), 1000, Timings()))


def test_status_tells_what_the_terminal_tells(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000)
    run.begins()
    for worker in range(3):
        run.tell(WorkerReady(worker, 0.1))
    for until in (3, 8, 14, 40):
        steady(run, until, range(10))
        if until == 8:
            run.tell(WorkerLost(0, "so it is"))
        state, (speed, left) = run.status(), run.tally.look(run.time.now)
        assert state.rows == run.tally.rows
        assert state.rows_per_second == pytest.approx(speed, rel=0.01)
        assert state.seconds_left == pytest.approx(left, rel=0.01)
        words = dict(state.lines())["rows"]
        assert f"{count(run.tally.rows)} of 1,000" in words and f"{count(speed)} rows/s" in words


def test_summary_status_report_and_advice_tell_one_share_of_busy_workers(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000)
    run.begins(workers=2)
    for worker in range(3):
        run.tell(WorkerReady(worker, 0.1))
    steady(run, 50, range(10))
    event = run.ends(written=1000)
    state = run.status(alive=False, success={"run": "abcd2345", "shards": 10, "ledger": {"read": 1000}})
    assert [use.busy for use in event.stages] == pytest.approx([0.4, 0.4])  # 40 s of 100 s, 20 s of 50 s
    assert state.busy() == figures.busy(state.history) == pytest.approx([0.4, 0.4], rel=1e-4)
    assert state.rows_per_second == state.history.average == pytest.approx(1000 / event.seconds)


def test_two_shards_of_one_worker_do_not_hide_one_another(tmp_path: Path) -> None:
    """One is being encoded while the next is read."""
    run = Run(tmp_path / "events", rows=1000)
    run.begins()
    run.tell(RowsRead(0, 0, 100))
    run.tell(RowsRead(0, 1, 5))
    assert run.tally.rows == 105
    run.tell(ShardCommitted(0, 0, Ledger(100, 100), 1000, Timings()))
    assert run.tally.rows == 105
    assert [rows for _, rows, _ in run.history().rows] == sorted(rows for _, rows, _ in run.history().rows)


def test_time_left_does_not_vanish_while_a_batch_takes_its_time(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000, known=False)
    run.begins()
    run.tick(10.0)
    run.tell(ShardCommitted(0, 0, Ledger(100, 100), 1000, Timings()))
    for _ in range(60):
        run.tick(1.0)
    speed, left = run.tally.look(run.time.now)
    assert (speed, left) == (0.0, pytest.approx(9 * 70.0))
    assert run.status().seconds_left == pytest.approx(left)


def test_a_resumed_run_knows_of_the_driver_before(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000)
    run.begins(workers=4)
    for worker in range(5):
        run.tell(WorkerReady(worker, 0.1))
    steady(run, 10, range(2))
    run.tell(RowsRead(1, 3, 60))
    run.tick(10.0)
    run.history()  # and then it is killed
    run.time.now += 1000.0
    run.begins(done=2, workers=1)
    run.tell(WorkerReady(0, 0.1))
    steady(run, 10, range(2, 4))
    state = run.status()
    assert (state.history.read, state.facts.ledger.written, state.facts.ledger.read) == (400, 400, 400)
    assert len(state.history.drivers) == 2
    assert state.history.capacity(0) == pytest.approx(20 * 4 + 10 * 1)
    assert state.history.counts["rows read again"] == 1
    assert any("60 rows were read by a driver that did not" in words for *_, words in state.history.incidents)
    track = state.history.stages[0].tracks["0"]
    assert track[-1].outcome == "lost" and track[-1].end == pytest.approx(20.0)
    work = figures.work(state.history)
    assert work is not None and work["stages"][0]["lost"] == pytest.approx(10.0 / 90.0, abs=0.001)


NUMBER = re.compile(r"([\d,.]+) ?(\S*)")


@pytest.mark.parametrize(
    ("words", "units", "steps"),
    [
        (count, ["", "k", "M", "G", "T", "P"], 1000.0),
        (size, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024.0),
    ],
)
@given(
    number=st.floats(0, 1e17) | st.integers(0, 10**17), near=st.integers(0, 5), off=st.floats(-0.002, 0.002)
)
def test_no_number_is_as_big_as_the_next_unit(
    words: Any, units: list[str], steps: float, number: float, near: int, off: float
) -> None:
    for each in (number, steps**near * (1 + off), steps**near * 0.99995):
        found = NUMBER.fullmatch(words(each))
        assert found is not None, words(each)
        value, unit = float(found[1].replace(",", "")), found[2]
        most = 10_000 if (steps, unit) == (1000.0, "") else steps
        assert value < most, words(each)
        assert value * steps ** units.index(unit) == pytest.approx(each, rel=0.06, abs=0.5)


@given(seconds=st.floats(0, 1e6) | st.integers(0, 3000).map(lambda n: 60 * n - 0.01))
def test_no_span_of_time_has_sixty_of_anything(seconds: float) -> None:
    for each in (abs(seconds), round(abs(seconds), 2)):
        assert not re.search(r"(?<![\d.])(60|[6-9]\d|\d{3,})(\.\d)? (s|min)\b", duration(each)), duration(
            each
        )
