"""The state of a run has the same figures whether it lived through the events or is read back from the record.

Terminal, Prometheus, summary, ``status``, report and advice read this state, so what they show agrees.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from crossed import few
from headrace.annex.report.facts import History, facts, history
from headrace.annex.report.follow import RunStatus
from headrace.core.events import (
    BatchShrunk,
    CallRetried,
    Event,
    MemoryTaken,
    RowsRead,
    RunFinished,
    RunStarted,
    ShardCommitted,
    ShardDivided,
    ShardRetried,
    StageUse,
    Worked,
    WorkerLost,
    WorkerReady,
)
from headrace.core.human import count, duration, size
from headrace.core.work import Fault, Faults, Ledger, Timings
from headrace.observers.record import MOST, Record
from headrace.observers.record_reader import lines_of, replay
from headrace.observers.run_parts import bottleneck
from headrace.observers.run_state import RunState, memory_of
from headrace.observers.summary import findings, stage_lines, stage_times
from headrace.observers.words import progress_line
from headrace.session.event_bus import EventBus
from observers.histories import Time, described


@dataclass
class Run:
    """A made-up run: its events go to a bus, and from there to a state and a record."""

    path: Path
    rows: int
    known: bool = True
    shards: int = 10
    time: Time = field(default_factory=Time)
    shown: list[tuple[int, float | None]] = field(default_factory=list)

    @property
    def state(self) -> RunState:
        return self.bus.state

    def begins(self, *, done: int = 0, workers: int = 2) -> None:
        self.bus = EventBus([Record(self.path)], clock=self.time)
        self.began = self.time.now
        per = self.rows // self.shards
        self.tell(described(("map_batches(f)", workers), ("predict(Net)", 1), elapsed=0.0))
        self.bus.on_event(
            RunStarted(
                "abcd2345", "/out", self.shards, done, done * per, self.rows if self.known else -1, workers,
                done * per, 0, 0, done * 1000,
            )
        )  # fmt: skip

    def tell(self, event: Event) -> None:
        self.bus.on_event(event)
        self.shown.append((self.state.rows, self.state.share))

    def tick(self, seconds: float) -> None:
        self.time.now += seconds
        self.bus.tick()

    def settles(self) -> None:
        """Let a second pass, so that the record has all."""
        self.tick(1.0)

    def ends(self, error: str = "", written: int = 0) -> RunFinished:
        seconds = self.time.now - self.began
        event = RunFinished(
            "abcd2345", "/out", Ledger(written, written), Timings(), written, 1, seconds, error,
            **findings(self.state, seconds),
        )  # fmt: skip
        self.tell(event)
        self.bus.close()
        return event

    def history(self) -> History:
        self.bus.close()
        return history(lines_of(self.path.read_bytes()))

    def read(self) -> RunState:
        state = RunState()
        replay(state, lines_of(self.path.read_bytes()))
        return state

    def status(self, *, alive: bool = True, success: Any = None) -> RunStatus:
        self.bus.close()
        state = self.read()
        known = facts(state, output="/out", alive=alive, success=success)
        return RunStatus(state, known, self.path, self.time.now - state.at if alive else 0.0)


def figures_of(state: RunState, now: float) -> dict[str, Any]:
    """Return every figure that somebody shows."""
    stages = {number: msgspec.structs.asdict(stage) for number, stage in sorted(state.stages.items())}
    for stage in stages.values():
        del stage["recent"]
    return {
        "line": progress_line(state, now),
        "at work": state.at_work,
        "rows": (state.rows, state.rows_expected, state.read, state.written, state.rejected, state.nulled),
        "failed": state.failed,
        "shards": (state.shards_done, state.shards),
        "bytes": state.bytes,
        "share": state.share,
        "speed": state.speed(now),
        "time left": state.time_left(now),
        "seconds": (state.elapsed(now), state.average(now)),
        "busy": (state.busy(now), state.busy_lately(now)),
        "stages": (state.stage_names, state.stage_workers, stages),
        "start": [(each.first_ready, each.loading) for each in state.drivers],
        "incidents": dict(state.counts),
        "memory": (state.memory_limit, state.memory_peak, state.memory and memory_of(state.memory)),
        "findings": {**findings(state, 50.0), "stages": (), "spent": ()},
    }


def same(some: Any, others: Any) -> bool:
    """Compare figures; seconds have four digits in the record."""
    if isinstance(some, float) and isinstance(others, float):
        return math.isclose(some, others, rel_tol=1e-3, abs_tol=2e-3)
    if isinstance(some, (list, tuple)):
        return len(some) == len(others) and all(map(same, some, others))
    if isinstance(some, dict):
        return some.keys() == others.keys() and all(same(some[key], others[key]) for key in some)
    return bool(some == others)


def assert_same(run: Run) -> None:
    """Check that the record says what whoever lived through the events knows, now and after some silence."""
    read = run.read()
    for silence in (0.0, 4.0, 9.0, 100.0):
        lived, told = (figures_of(state, run.time.now + silence) for state in (run.state, read))
        assert {name: (lived[name], told[name]) for name in lived if not same(lived[name], told[name])} == {}


faults = Faults(((Fault("map(f)", "ValueError", "bad"), 3),))
moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["read", "read", "read", "commit", "commit", "retry", "lost", "divide", "early", "wait", "work", "ready",
             "memory", "shrink", "call"]
        ),
        st.integers(0, 9),
        st.integers(0, 2),
        st.integers(0, 120),
    ),
    max_size=60,
)  # fmt: skip


def play(run: Run, moves: list[tuple[str, int, int, int]], committed: set[int]) -> None:
    """Let what was drawn happen."""
    for what, shard, worker, rows in moves:
        ledger = Ledger(100, 95, 3, nulled=2) if shard % 3 == 0 else Ledger(100, 100)
        if (
            what == "read" and shard not in committed
        ):  # maybe more than there are: an earlier stage may add some
            run.tell(RowsRead(worker, shard, rows, faults if rows % 2 else Faults()))
        elif what == "commit" and shard not in committed:
            committed.add(shard)
            run.tell(ShardCommitted(shard, 0, ledger, 1000, Timings(0.1, 0.5)))
        elif what == "retry" and shard not in committed:
            run.tell(ShardRetried(shard, 1, "so it is"))
        elif what == "lost":
            run.tell(WorkerLost(worker, "so it is"))
        elif what in ("divide", "early") and shard not in committed:
            run.tell(ShardDivided(shard, 2, early=what == "early"))
        elif what == "work":
            outcome: Any = ("done", "going on", "failed", "lost")[rows % 4]
            timings = Timings(rows / 400, rows / 200, rows / 1000, rows / 300)
            run.tell(Worked(int(worker > 1), worker, shard, 0, rows / 60, outcome, rows, timings))
        elif what == "ready":
            run.tell(WorkerReady(worker, rows / 50))
        elif what == "memory":
            run.tell(MemoryTaken(rows, 2 * rows, (rows, 1), 500))
        elif what == "shrink":
            run.tell(BatchShrunk(worker, "predict(Net)", rows + 2, rows // 2 + 1))
        elif what == "call":
            run.tell(CallRetried(worker, "map(f)", "TimeoutError"))
        run.tick(rows / 40)


@settings(max_examples=few(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    moves=moves, known=st.booleans(), done=st.integers(0, 3), error=st.sampled_from(["", "it fails", None])
)
@example(moves=[("read", 0, 0, 0), ("read", 0, 0, 1), ("ready", 0, 1, 0)], known=False, done=0, error="")
def test_the_record_says_what_the_events_said(
    tmp_path_factory: pytest.TempPathFactory,
    moves: list[tuple[str, int, int, int]],
    known: bool,
    done: int,
    error: str | None,
) -> None:
    """Also of a driver that a second one follows: to the state it is one story."""
    run = Run(tmp_path_factory.mktemp("run") / "events", rows=1000, known=known)
    run.begins(done=done)
    committed = set(range(done))
    half = len(moves) // 2
    play(run, moves[:half], committed)
    run.settles()
    assert_same(run)
    play(run, moves[half:], committed)
    run.settles()
    assert_same(run)
    if error is not None:
        run.ends(error, written=run.state.written)
        assert_same(run)


@settings(max_examples=few(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(moves=moves, known=st.booleans(), done=st.integers(0, 3))
def test_nothing_that_is_shown_goes_back(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int, int, int]], known: bool, done: int
) -> None:
    run = Run(tmp_path_factory.mktemp("run") / "events", rows=1000, known=known)
    run.begins(done=done)
    committed = set(range(done))
    play(run, moves, committed)
    assert [rows for rows, _ in run.shown] == sorted(rows for rows, _ in run.shown)
    shares = [share for _, share in run.shown if share is not None]
    assert shares == sorted(shares) and all(0 <= share <= 1 for share in shares)
    told = [rows for _, rows, _ in run.history().progress]
    assert told == sorted(told)
    state = run.state
    assert state.read == len(committed) * 100 and state.bytes == len(committed) * 1000
    assert state.shards_done == len(committed) and state.rows >= state.read


def test_shards_that_have_no_line_of_their_own_are_counted(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000)
    run.begins()
    for _ in range(MOST + 100):
        run.tell(ShardDivided(0, 2))
        run.tell(ShardDivided(1, 3, early=True))
    run.settles()
    assert run.state.shards == 10 + 3 * (MOST + 100)
    assert_same(run)


def test_rows_that_failed_are_shown_before_they_are_committed(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000)
    run.begins()
    run.tell(RowsRead(0, 0, 50, faults))
    run.settles()
    assert "3 failed" in progress_line(run.state, run.time.now)
    assert dict(run.status().lines())["failed"] == "3 rows, 6.00 %"


def test_speed_falls_everywhere_when_nothing_happens(tmp_path: Path) -> None:
    """``status`` used to show the old speed until a driver had been silent for ten seconds."""
    run = Run(tmp_path / "events", rows=1000)
    run.begins()
    for second in range(10):
        run.tell(RowsRead(0, 0, 10 * (second + 1)))
        run.tick(1.0)
    run.tick(9.0)
    lived = run.state.speed(run.time.now)
    assert 7.0 < lived < 8.0  # 100 rows in 10 s, and 3 s more than a sample may be late
    assert run.status().rows_per_second == lived


def test_it_is_at_work_once_a_worker_is_ready(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000)
    assert not RunState().at_work
    run.begins()
    assert not run.state.at_work
    run.tick(5.0)
    run.tell(WorkerReady(0, 4.0))
    assert run.state.at_work
    (driver,) = run.state.drivers
    assert (driver.first_ready, driver.loading) == (5.0, 4.0)
    run.ends(written=1)
    assert not run.state.at_work


def test_a_retry_does_not_take_rows_back() -> None:
    state = RunState()
    state.add(RunStarted("r1", "/out", 10, 0, 0, 1000, 2), 0.0)
    for event in (
        RowsRead(0, 1, 50),
        RowsRead(1, 2, 50),
        WorkerLost(0, "killed"),
        ShardRetried(2, 2, "killed"),
    ):
        state.add(event, 1.0)
    assert (state.rows, state.counts["shard tried again"]) == (100, 1)
    state.add(RowsRead(1, 1, 80), 2.0)
    assert state.rows == 100
    state.add(RowsRead(1, 2, 30), 2.0)
    assert state.rows == 110


def test_a_resumed_run_starts_where_it_was_and_its_speed_does_not() -> None:
    state = RunState()
    state.add(RunStarted("r1", "/out", 10, 5, 500, 1000, 2), 0.0)
    assert (state.rows, state.shards_done) == (500, 5)
    state.add(ShardCommitted(5, 1, Ledger(100, 100), 1024, Timings()), 10.0)
    state.tick(10.0)
    assert (state.speed(10.0), state.time_left(10.0)) == (10.0, 40.0)


def test_time_left_by_shards_where_rows_are_unknown() -> None:
    state = RunState()
    state.add(RunStarted("r1", "/out", 4, 0, 0, -1, 2), 0.0)
    assert (state.speed(1.0), state.time_left(1.0)) == (0.0, None)
    state.add(ShardCommitted(0, 1, Ledger(100, 100), 1024, Timings()), 2.0)
    state.tick(2.0)
    assert (state.speed(2.0), state.time_left(2.0)) == (50.0, 6.0)
    assert progress_line(state, 2.0) == (
        "running, 25.0 %, 100 rows, 1 of 4 parts of the input, 50 rows/s, 0:02 elapsed, 0:06 left"
    )


def test_speed_is_that_since_a_worker_was_ready() -> None:
    state = RunState()
    state.add(RunStarted("r1", "/out", 200, 0, 0, 100_000, 2), 0.0)
    state.add(WorkerReady(0, 55.0), 60.0)
    for second in range(61, 65):
        state.add(ShardCommitted(second, 1, Ledger(100, 100), 1024, Timings()), second)
        state.tick(second)
    assert state.speed(64.0) == pytest.approx(100.0)
    assert state.time_left(64.0) == pytest.approx(996.0)


def test_more_rows_than_expected_leave_no_time() -> None:
    state = RunState()
    state.add(RunStarted("r1", "/out", 10, 0, 0, 50, 2), 0.0)
    state.add(ShardCommitted(0, 1, Ledger(100, 100), 1024, Timings()), 1.0)
    state.tick(1.0)
    assert (state.speed(1.0), state.time_left(1.0)) == (100.0, 0.0)


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


def test_summary_status_report_and_advice_have_one_share_of_busy_workers(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000)
    run.begins(workers=2)
    for worker in range(3):
        run.tell(WorkerReady(worker, 0.1))
    steady(run, 50, range(10))
    event = run.ends(written=1000)
    status = run.status(alive=False, success={"run": "abcd2345", "shards": 10, "ledger": {"read": 1000}})
    assert [use.busy for use in event.stages] == pytest.approx([0.4, 0.4])  # 40 s of 100 s, 20 s of 50 s
    assert status.busy() == run.history().busy(run.time.now) == pytest.approx([0.4, 0.4], rel=1e-4)
    assert (
        status.rows_per_second == run.history().average(run.time.now) == pytest.approx(1000 / event.seconds)
    )


def test_two_shards_of_one_worker_do_not_hide_one_another(tmp_path: Path) -> None:
    """One is being encoded while the next is read."""
    run = Run(tmp_path / "events", rows=1000)
    run.begins()
    run.tell(RowsRead(0, 0, 100))
    run.tell(RowsRead(0, 1, 5))
    assert run.state.rows == 105
    run.tell(ShardCommitted(0, 0, Ledger(100, 100), 1000, Timings()))
    assert run.state.rows == 105
    assert [rows for _, rows, _ in run.history().progress] == sorted(
        rows for _, rows, _ in run.history().progress
    )


def test_time_left_does_not_vanish_while_a_batch_takes_its_time(tmp_path: Path) -> None:
    run = Run(tmp_path / "events", rows=1000, known=False)
    run.begins()
    run.tick(10.0)
    run.tell(ShardCommitted(0, 0, Ledger(100, 100), 1000, Timings()))
    for _ in range(60):
        run.tick(1.0)
    now = run.time.now
    assert (run.state.speed(now), run.state.time_left(now)) == (0.0, pytest.approx(9 * 70.0))
    assert run.status().seconds_left == pytest.approx(9 * 70.0)


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
    known, found = run.status().facts, run.history()
    assert (found.read, known.ledger.written, known.ledger.read) == (400, 400, 400)
    assert len(found.drivers) == 2
    assert found.capacity(0, found.at) == pytest.approx(20 * 4 + 10 * 1)
    assert found.counts["driver whose rows were read again"] == 1
    assert any("60 rows were read by a driver that did not" in words for *_, words in found.incidents)
    track = found.tracks[0]["1.0"]
    assert track[-1].outcome == "lost" and track[-1].end == pytest.approx(20.0)
    stage = stage_times(found, found.at)[0]
    assert stage.share("lost") == pytest.approx(10.0 / 90.0, abs=0.001)


@pytest.mark.parametrize(("shards", "lost"), [(2, False), (3, True)])
def test_no_work_is_lost_once_all_shards_are_committed(tmp_path: Path, shards: int, lost: bool) -> None:
    """As where a requirement is not met: the run ends with an error, and all its rows are kept."""
    run = Run(tmp_path / "events", rows=100 * shards, shards=shards)
    run.begins(workers=1)
    run.tell(WorkerReady(0, 0.1))
    steady(run, 10, range(2))
    run.tick(5.0)
    run.ends("not as required", written=200)
    assert (run.read().lost > 0) is lost


def test_terminal_and_report_name_the_same_bottleneck() -> None:
    """The summary named a stage from 70 % on, the report from 80 %, if no other had more than 60 %."""
    for shares in ([0.75, 0.3], [0.97, 0.9], [0.3, 0.85], [0.6, 0.1]):
        uses = [StageUse(f"s{i}", 1, share) for i, share in enumerate(shares)]
        named = [i for i, line in enumerate(stage_lines(uses)) if "bottleneck" in line]
        assert named == [i for i in [bottleneck(shares)] if i is not None]


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


def test_what_is_under_way_counts(tmp_path: Path) -> None:
    """A worker that is at one shard for long used to be idle until it had ended."""
    run = Run(tmp_path / "events", rows=1000)
    run.begins()
    run.tick(2.0)
    run.tell(WorkerReady(0, 1.0))
    for second in range(10):
        run.tell(RowsRead(0, 0, second + 1))
        run.tick(1.0)
    assert run.state.working == (0,)
    assert run.state.busy_lately(run.time.now)[-1] == pytest.approx(10 / 12)
    assert dict(run.status().spent())["work under way"] == pytest.approx(10 / 12, abs=0.01)
    run.tell(ShardCommitted(0, 0, Ledger(100, 100), 1000, Timings()))
    assert run.state.working == ()
    assert run.state.busy_lately(run.time.now)[-1] == 0.0


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_each_kind_of_event_is_counted_or_passed_over_by_name(kind: type[Any]) -> None:
    """An event that the state does not know is an error, here and to the type checker; it is never dropped."""
    state = RunState()
    with contextlib.suppress(AttributeError, TypeError):  # it has no values
        state.add(kind.__new__(kind), at=1.0)


def test_an_event_that_has_no_case_is_an_error() -> None:
    class Unheard(msgspec.Struct, frozen=True):
        pass

    with pytest.raises(AssertionError, match="Unheard"):
        RunState().add(cast(Any, Unheard()), at=1.0)
