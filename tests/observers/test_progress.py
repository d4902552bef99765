"""Progress: what is shown, where, and when; with a clock of our own and a pseudo-terminal."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.core.events import (
    BatchShrunk,
    RowsRead,
    RunFinished,
    RunStarted,
    ShardCommitted,
    ShardDivided,
    ShardRetried,
    WorkerReady,
)
from headrace.core.work import Fault, Faults, Ledger, Timings
from headrace.observers.live_lines import ForgivingStream, LiveLines
from headrace.observers.progress import Progress, TerminalView
from headrace.observers.run_state import RunState
from headrace.observers.words import progress_line
from headrace.session.event_bus import EventBus
from observers.histories import described

from .terminal import Terminal


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def started(
    *, rows: int = 1000, shards: int = 10, done: int = 0, rows_done: int = 0, **others: Any
) -> RunStarted:
    return RunStarted("r1", "/out", shards, done, rows_done, rows, 2, **others)


def committed(shard: int, rows: int = 100) -> ShardCommitted:
    return ShardCommitted(shard, 1, Ledger(rows, rows), 1024, Timings())


FAULTS = Faults(((Fault("map(f)", "ValueError", "bad"), 3),))
FINISHED = RunFinished("r1", "/out", Ledger(), Timings(), 0, 0, 1.0)


class TestLines:
    """Where there is no terminal."""

    def test_lines_become_rare(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.on_event(started())
        told = []
        for second in range(1, 1300):
            clock.now += 1.0
            progress.tick()
            if stream.getvalue():
                told.append(second)
                stream.seek(0)
                stream.truncate()
        assert told == [10, 30, 60, 300, 600, 900, 1200]

    def test_what_a_line_says(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.on_event(started(done=2, rows_done=200))
        progress.on_event(committed(2))
        progress.on_event(ShardRetried(3, 2, "a worker died"))
        progress.on_event(RowsRead(0, 3, 50))
        clock.now += 5.0
        progress.tick()
        clock.now += 5.0
        progress.tick()
        assert stream.getvalue() == (
            "headrace: running, 35.0 %, 350 of 1,000 rows, 30 rows/s, 0:10 elapsed, 0:16 left, 1 retry\n"
        )

    def test_rows_that_only_reading_tells_are_estimated_from_bytes(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.on_event(described())
        progress.on_event(
            started(rows=-1, shards=3, rows_done=0, size=100_000, sizes={0: 50_000, 1: 30_000, 2: 20_000})
        )
        told = []
        for event in (
            RowsRead(0, 0, 600),
            RowsRead(0, 0, 1200, size=12_000),
            RowsRead(1, 1, 1300, size=10_000),
            ShardRetried(1, 2, "a worker died"),
            ShardDivided(0, 2, early=True, sizes={0: 20_000, 3: 30_000}),
            committed(0, 2_000),
            committed(1, 3_000),
            committed(3, 3_000),
            committed(2, 1_000),
        ):
            progress.on_event(event)
            clock.now += 2.0
            progress.tick()
            told.append(" ".join(progress_line(progress.state, clock.now).split(", ")[1:3]))
        assert (
            told
            == [
                "0.0 % 600 rows",
                "12.0 % 1,200 of about 10,000 rows",
                "21.9 % 2,500 of about 11,400 rows",
                "25.0 % 2,500 of about 10,000 rows",  # the rows of the lost worker count no more, and it never falls
                "25.0 % 2,500 of about 10,000 rows",
                "25.0 % 2,500 of about 10,000 rows",
                "50.0 % 5,000 of about 10,000 rows",
                "80.0 % 8,000 of about 10,000 rows",
                "100.0 % 9,000 of about 9,000 rows",
            ]
        )

    def test_lines_for_machines(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream, as_json=True)], clock=clock)
        progress.on_event(started(done=2, rows_done=200))
        progress.on_event(committed(2))
        progress.on_event(BatchShrunk(0, "f", 2, 1))
        for _ in range(2):
            clock.now += 5.0
            progress.tick()
        note, told = map(json.loads, stream.getvalue().splitlines())
        assert note["event"] == "note" and note["text"].startswith("memory did not suffice for 2 rows in f")
        assert told == {
            "event": "progress", "phase": "running", "share": 0.3, "rows": 300, "rows_half_done": 0,
            "rows_expected": 1000, "rows_per_second": 20.0, "rows_failed": 0, "shards": 10, "shards_done": 3,
            "shards_retried": 0, "workers_ready": 0, "elapsed": 10.0, "left": 30.0,
        }  # fmt: skip

    def test_one_line_where_memory_did_not_suffice(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.on_event(started())
        for worker, halvings in enumerate(([1000, 500, 250], [800, 400, 200, 100])):
            for before in halvings:
                progress.on_event(BatchShrunk(worker, "predict([Net])", before, before // 2))
                progress.tick()
        assert stream.getvalue() == ""
        clock.now += 0.5
        for _ in range(2):
            progress.tick()
        line = "headrace: memory did not suffice for {} rows in predict([Net]): it gets {} at a time now\n"
        assert stream.getvalue() == line.format("1,000", 50)
        progress.on_event(BatchShrunk(2, "predict([Net])", 1000, 500))  # another worker is not there yet
        progress.on_event(BatchShrunk(0, "map_batches(big)", 2, 1))
        clock.now += 0.5
        progress.tick()
        progress.on_event(BatchShrunk(1, "predict([Net])", 50, 25))
        clock.now += 0.5
        progress.tick()
        told = stream.getvalue().splitlines(keepends=True)
        assert told[1] == line.replace("predict([Net])", "map_batches(big)").format(2, 1)
        assert told[2:] == [line.format("1,000", 25)]

    def test_silence_before_and_after(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.tick()
        progress.on_event(committed(0))
        progress.on_event(started())
        progress.on_event(FINISHED)
        clock.now += 100.0
        progress.tick()
        progress.close()
        progress.close()
        assert stream.getvalue() == ""

    @pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
    def test_a_broken_stream_ends_the_show_only(self, error: type[Exception]) -> None:
        class Broken(io.StringIO):
            calls = 0

            def write(self, text: str) -> int:
                self.calls += 1
                raise error

        clock, stream = Clock(), Broken()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.on_event(started())
        for _ in range(5):
            clock.now += 11.0
            progress.tick()
        progress.close()
        assert stream.calls == 1

    def test_no_stream_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", None)
        clock = Clock()
        progress = EventBus([Progress()], clock=clock)
        progress.on_event(started())
        clock.now += 11.0
        progress.tick()
        progress.close()

    def test_a_closed_stream(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream)], clock=clock)
        stream.close()
        progress.on_event(started())
        clock.now += 11.0
        progress.tick()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    yield terminal
    terminal.close()


@contextlib.contextmanager
def running(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EventBus, Clock]]:
    """A bar that is showing, with standard output on the same terminal."""
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    clock = Clock()
    progress = EventBus([Progress(terminal.stream)], clock=clock)
    progress.on_event(started())
    progress.on_event(WorkerReady(0, 0.1))
    progress.on_event(WorkerReady(1, 0.1))
    clock.now += 1.0
    progress.tick()
    try:
        yield progress, clock
    finally:
        progress.close()


class TestBar:
    """On a terminal."""

    def test_no_bar_for_a_run_that_is_over_at_once(self, terminal: Terminal) -> None:
        clock = Clock()
        progress = EventBus([Progress(terminal.stream)], clock=clock)
        progress.on_event(started())
        clock.now += 0.3
        progress.tick()
        progress.on_event(FINISHED)
        assert terminal.lines() == [] and terminal.raw == ""

    def test_the_bar_moves_with_rows_inside_shards(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running(terminal, monkeypatch) as (progress, clock):
            (before,) = terminal.lines()
            clock.now += 1.0
            for shard in range(5):
                progress.on_event(RowsRead(shard % 2, shard, 100))
            progress.tick()
            (line,) = terminal.lines()
            assert before.endswith("0.0 %      0 of 1,000 rows  0:01 elapsed  -:-- left")
            assert line.startswith("running  ━━━━━━━━━─────────   50.0 %") and line.endswith(
                "50.0 %    500 of 1,000 rows     250 rows/s  0:02 elapsed  0:02 left"
            )
            assert len(line) <= 100

    def test_prints_stand_above_the_bar(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        with running(terminal, monkeypatch) as (progress, _):

            def work() -> None:
                sys.stdout.write("one\n")
                print("two [red]plain[/red]")

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            progress.tick()
            lines = terminal.lines()
            assert lines[:2] == ["one", "two [red]plain[/red]"]
            assert len(lines) == 3 and "0.0 %" in lines[2]

    def test_logging_that_was_set_up_before_stands_above_the_bar(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handler = logging.StreamHandler(terminal.stream)
        log = logging.getLogger("theirs")
        log.addHandler(handler)
        try:
            with running(terminal, monkeypatch) as (progress, _):
                log.warning("be careful")
                progress.tick()
                told, bar = terminal.lines()
                assert told == "be careful" and "0.0 %" in bar
            assert handler.stream is terminal.stream
        finally:
            log.removeHandler(handler)

    def test_too_little_memory_stands_above_the_bar(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running(terminal, monkeypatch) as (progress, clock):
            progress.on_event(BatchShrunk(0, "predict([red])", 10_000, 5_000))
            clock.now += 1.0
            progress.tick()
            told, bar = terminal.lines()
            assert told == (
                "headrace: memory did not suffice for 10,000 rows in predict([red]): it gets 5,000 at a time now"
            )
            assert "0.0 %" in bar
            progress.on_event(FINISHED)
            assert terminal.lines() == [told]

    def test_the_bar_goes_and_prints_stay(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        with running(terminal, monkeypatch) as (progress, _):
            print("kept")
            progress.on_event(FINISHED)
            assert sys.stdout is terminal.stream
            print("after")
            assert terminal.lines() == ["kept", "after"]

    def test_prints_into_a_file_stay_there(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        file, clock = io.StringIO(), Clock()
        monkeypatch.setattr(sys, "stdout", file)
        progress = EventBus([Progress(terminal.stream)], clock=clock)
        progress.on_event(started())
        clock.now += 1.0
        progress.tick()
        print("data")
        progress.close()
        assert file.getvalue() == "data\n"

    def test_a_terminal_that_goes_away(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        with running(terminal, monkeypatch) as (progress, clock):
            before = sys.stdout
            terminal.stream.close()
            for _ in range(3):
                clock.now += 1.0
                progress.tick()
            progress.close()
            assert sys.stdout is not before

    def test_a_dumb_terminal_gets_lines(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "dumb")
        clock = Clock()
        progress = EventBus([Progress(terminal.stream)], clock=clock)
        progress.on_event(started())
        clock.now += 10.0
        progress.tick()
        (line,) = terminal.lines()
        assert line == "headrace: starting workers, 0 of 2, 0:10 elapsed"


class TestFrames:
    """What is written to a terminal, and when."""

    def test_a_frame_is_one_write_and_the_same_frame_none(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[str] = []
        monkeypatch.setattr(terminal.stream, "write", written.append)
        clock = Clock()
        progress = EventBus([Progress(terminal.stream)], clock=clock)
        progress.on_event(started())
        for moved in (1.0, 0.01, 0.05, 0.2, 0.2):  # too early for another frame; another frame, but the same
            clock.now += moved
            progress.tick()
        assert len(written) == 1
        clock.now += 1.0
        progress.tick()
        assert len(written) == 2
        assert all(text.startswith("\x1b[?2026h\r") and text.endswith("\x1b[?2026l") for text in written)
        progress.close()

    @pytest.mark.parametrize("columns", [30, 60, 80, 100, 140])
    def test_a_line_fits_its_terminal(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        state = RunState()
        state.add(described(("map_batches(a_long_name_of_a_function)", 12), ("predict(Net)", 1)), 100.0)
        state.add(started(rows=12_000_000), 100.0)
        state.add(WorkerReady(0, 1.0), 101.0)
        for second in range(10):
            state.add(RowsRead(0, 0, 100_000 * (second + 1), FAULTS), 102.0 + second)
            state.tick(102.0 + second)
        view = TerminalView(ForgivingStream(terminal.stream))
        view.draw(state, 112.0, 3725.0)
        first, *stages = terminal.lines()
        view.close()
        assert all(len(line) <= columns - len("^C") - 1 for line in (first, *stages)) and len(stages) == 2
        wanted = {
            30: ["running", "8.3 %"],
            60: ["running", "8.3 %", "100 k rows/s", "1:02:05 left", "3 failed"],
            80: ["running", "─────", "8.3 %", "100 k rows/s", "1:02:05 left", "3 failed"],
            100: ["running", "8.3 %", "1,000,000 of 12,000,000 rows", "100 k rows/s", "1:02:05 left", "3 failed"],
            140: ["8.3 %", "1,000,000 of 12,000,000 rows", "0:12 elapsed", "1:02:05 left", "3 failed"],
        }  # fmt: skip
        assert [words for words in wanted[columns] if words not in first] == []
        assert terminal.lines() == []

    def test_a_terminal_that_becomes_narrower_keeps_nothing_of_the_old_line(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = LiveLines(terminal.stream)
        live.draw(["x" * 90, "y" * 90])
        monkeypatch.setenv("COLUMNS", "50")  # where each line takes two rows by now
        written: list[str] = []
        monkeypatch.setattr(terminal.stream, "write", written.append)
        live.draw(["z"])
        assert written == ["\x1b[?2026h\r\x1b[3A\x1b[Jz\x1b[K\x1b[?2026l"]
        live.close()

    def test_fewer_lines_leave_nothing_of_more(self, terminal: Terminal) -> None:
        live = LiveLines(terminal.stream)
        live.draw(["first", "second", "third"])
        live.draw(["only"])
        assert terminal.lines() == ["only"]
        live.close()

    def test_an_ascii_terminal_gets_ascii(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")

        class Ascii(io.StringIO):
            encoding = "ascii"  # type: ignore[assignment]

            def isatty(self) -> bool:
                return True

        clock, stream = Clock(), Ascii()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.on_event(started())
        progress.on_event(RowsRead(0, 0, 500))
        clock.now += 1.0
        progress.tick()
        assert "##" in stream.getvalue() and stream.getvalue().isascii()
        progress.close()

    def test_a_part_of_a_line_is_printed_in_the_end(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running(terminal, monkeypatch) as (progress, _):
            print("half", end="")
            progress.tick()
            assert "half" not in terminal.lines()
            print(" and half")
            print("rest", end="")
        assert terminal.lines() == ["half and half", "rest"]


class TestVerbs:
    """Who shows it. The process is the worker, and patience is none."""

    @pytest.fixture
    def shown(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
        monkeypatch.delenv("HEADRACE_PROGRESS", raising=False)
        monkeypatch.setattr("headrace.observers.progress.PATIENCE", -1.0)
        monkeypatch.setattr("headrace.observers.progress._FRAME", 0.0)
        return terminal

    @pytest.mark.parametrize(
        "verb",
        [
            lambda data: data.count(),
            lambda data: data.take_all(),
            lambda data: data.to_arrow(),
            lambda data: data.unique("id"),
            lambda data: data.accumulate(rows=hr.Count()).evaluate(),
            lambda data: list(data.with_options(progress=True).iter_batches()),
        ],
    )
    def test_verbs_that_run_the_plan_show_how_far_they_are(
        self, shown: Terminal, monkeypatch: pytest.MonkeyPatch, verb: Any
    ) -> None:
        monkeypatch.setattr(sys, "stderr", shown.stream)  # here: pytest sets it after fixtures
        verb(hr.range(4_000).filter(lambda row: True).with_options(engine="inline", shard_rows=1_000))
        assert shown.lines() == []  # nothing is left of it
        assert "finishing" in shown.raw and "100.0 %" in shown.raw
        assert "2,048 of 4,000 rows" in shown.raw

    def test_others_do_not(self, shown: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", shown.stream)
        data = hr.range(4_000).map(lambda row: row).with_options(engine="inline")
        assert len(list(data.iter_rows())) == 4_000 and len(data.take(3)) == 3
        assert data.with_options(progress=False).count() == 4_000
        assert shown.lines() == [] and shown.raw == ""
