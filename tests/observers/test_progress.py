"""Progress: what is shown, where, and when; with a clock of our own and a pseudo-terminal."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace.core.events import (
    BatchShrunk,
    RowsRead,
    RunFinished,
    RunStarted,
    ShardCommitted,
    ShardRetried,
)
from headrace.core.work import Ledger, Timings
from headrace.observers.progress import Progress
from headrace.session.event_bus import EventBus

from .terminal import Terminal


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def started(*, rows: int = 1000, shards: int = 10, done: int = 0, rows_done: int = 0) -> RunStarted:
    return RunStarted("r1", "/out", shards, done, rows_done, rows, 2)


def committed(shard: int, rows: int = 100) -> ShardCommitted:
    return ShardCommitted(shard, 1, Ledger(rows, rows), 1024, Timings())


FINISHED = RunFinished("r1", "/out", Ledger(), Timings(), 0, 0, 1.0)


class TestLines:
    """Where there is no terminal."""

    def test_a_line_every_ten_seconds(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream)], clock=clock)
        progress.on_event(started())
        for _ in range(250):  # 50 seconds of five ticks each
            clock.now += 0.2
            progress.tick()
        assert len(stream.getvalue().splitlines()) in (4, 5)

    def test_what_a_line_says(self) -> None:
        clock, stream = Clock(), io.StringIO()
        progress = EventBus([Progress(stream, every=5.0)], clock=clock)
        progress.on_event(started(done=2, rows_done=200))
        progress.on_event(committed(2))
        progress.on_event(ShardRetried(3, 2, "a worker died"))
        progress.on_event(RowsRead(0, 3, 50))
        clock.now += 5.0
        progress.tick()
        assert stream.getvalue() == (
            "headrace: 350 of 1,000 rows, 30 rows/s, 3/10 shards, 1 KiB, 1 retry, ETA 0:22\n"
        )

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
            progress.on_event(RowsRead(0, 0, 500))
            clock.now += 1.0
            progress.tick()
            (line,) = terminal.lines()
            assert before.endswith("0 of 1,000 rows, 0 rows/s, 0/10 shards, 0 B, ETA -:--")
            assert line.endswith("500 of 1,000 rows, 250 rows/s, 0/10 shards, 0 B, ETA 0:02")
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
            assert len(lines) == 3 and "rows/s" in lines[2]

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
            assert "rows/s" in bar
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
        assert line.startswith("headrace: 0 of 1,000 rows")


def test_rich_is_imported_only_for_a_bar() -> None:
    script = (
        "import sys, headrace.observers.progress, headrace.observers.summary; print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
