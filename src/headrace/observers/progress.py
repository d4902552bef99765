"""How far a run is: lines at the foot of a terminal, in a notebook's cell, or now and then a line elsewhere."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from headrace.core.events import BatchShrunk, Event, PoolWaits, RunFinished, RunStarted, WorkerRetired
from headrace.core.tables import rendered
from headrace.core.terminal import in_notebook, one_line, say, visible, wrapped
from headrace.observers.live_lines import ForgivingStream, LiveLines, text_stream
from headrace.observers.run_state import RunState
from headrace.observers.words import (
    MOST_BAR,
    SteadyTimeLeft,
    fields,
    fitting,
    present_elapsed,
    progress_line,
    progress_object,
    rows_text,
    share_text,
    stage_texts,
)

_log = logging.getLogger("headrace")

PATIENCE = 0.5  # seconds: a run that is over by then shows nothing
_FRAME = 0.1  # seconds between two frames at least
_SILENCE = 0.4  # seconds without a tick, after which this object's own thread draws
_QUIET = 0.5  # seconds: a batch is often halved several times in a row, and the last size is what matters
_LINES = (10.0, 30.0, 60.0, 300.0)  # seconds at which there is a line, where there is no terminal
_LATER = 300.0  # seconds between two further ones
_WIDTH = 100  # columns of a stage's line in a notebook
_RETIREMENTS = 5  # that have a line of their own


class Progress:
    """Shows phase, share, speed, the time left and rows that failed.

    On a terminal a line, and one more for each stage if there are several, drawn whenever ``tick`` is called; what is
    printed meanwhile appears above. In a notebook a bar in the cell. Elsewhere a line after 10 s, 30 s, a minute, and
    then every five. There is one more line where a batch did not fit into memory, or a worker was ended for memory.
    If the stream breaks, nothing more is shown; the run goes on.

    Parameters
    ----------
    stream
        Where to show; standard error by default.
    as_json
        Whether lines are JSON objects, where there is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, as_json: bool = False) -> None:
        self._stream = ForgivingStream(stream or sys.stderr)
        self._in_notebook = stream is None and in_notebook()
        self._as_json = as_json
        self._state = RunState()
        self._running = False
        self._began: float | None = None  # by the monotonic clock
        self._seen = 0.0  # by the monotonic clock, when the state was up to date
        self._shrunk = ShrunkBatches()
        self._left = SteadyTimeLeft()
        self._view: TerminalView | NotebookView | None = None
        self._drawn = 0.0
        self._line = 0.0
        self._retirements = 0
        self._lock = threading.RLock()
        self._stop = threading.Event()

    def begin(self) -> None:
        """Show from now on that something goes on: also before the first event, and while no tick comes."""
        if self._stream.isatty() or self._in_notebook:
            self._began = self._seen = time.monotonic()
            self._running = True
            threading.Thread(target=self._draw_in_silence, name="headrace-progress", daemon=True).start()

    def prepare(self, words: str) -> None:
        """Show what is done before the run begins."""
        self._state.doing, self._state.doing_since = words, self._began

    def attach(self, state: RunState) -> None:
        """Read all figures from ``state``, which has each event before this observer gets it."""
        self._state = state
        self._seen = time.monotonic()

    def on_event(self, event: Event) -> None:
        """See an event; drawing waits for ``tick``."""
        now = self._state.at
        self._seen = time.monotonic()
        if isinstance(event, RunStarted):
            self._running, self._shrunk, self._left = True, ShrunkBatches(), SteadyTimeLeft()
            self._line = _LINES[0]
        elif isinstance(event, RunFinished):
            self.close()
        elif self._running and isinstance(event, BatchShrunk):
            self._shrunk.add(event, now)
        elif self._running and isinstance(event, WorkerRetired):
            if not event.idle and self._retirements < _RETIREMENTS:
                self._retirements += 1
                self._say(retirement(event))
        elif self._running and isinstance(event, PoolWaits):
            wanted = "a worker" if event.wanted == 1 else f"{event.wanted} workers"
            self._say(
                f"{event.pool} waits for the cluster to place {wanted} ({event.each}), {event.seconds:.0f} s so far"
            )

    def tick(self) -> None:
        """Draw if it is time."""
        self._seen = time.monotonic()
        if not self._running or self._stream.broken:
            return
        now = self._state.at
        for line in self._shrunk.lines(now):
            self._say(line)
        if self._in_notebook or self._stream.isatty():
            self._draw(now)
        elif present_elapsed(self._state, now) >= self._line:
            self._say_how_far(now)

    def close(self) -> None:
        """Take the lines away and give the standard streams back. May be called more than once."""
        self._stop.set()
        with self._lock:
            self._running = False
            view, self._view = self._view, None
        if view is not None:
            view.close()

    # ------------------------------------------------------------ drawing

    def _draw(self, now: float) -> None:
        elapsed = present_elapsed(self._state, now)
        waited = elapsed if self._began is None else time.monotonic() - self._began
        with self._lock:
            if not self._running or waited < PATIENCE or 0 <= now - self._drawn < _FRAME:
                return
            self._drawn = now
            if self._view is None:
                self._view = self._new_view()
            left = self._left.update(now, self._state.time_left(now), elapsed=elapsed)
            self._view.draw(self._state, now, left)

    def _new_view(self) -> TerminalView | NotebookView:
        return NotebookView() if self._in_notebook else TerminalView(self._stream)

    def _draw_in_silence(self) -> None:
        """Draw while the driver's thread is in somebody else's code: lists files, or runs a function by itself."""
        wait = PATIENCE
        while not self._stop.wait(wait):
            wait = _SILENCE / 2
            silence = time.monotonic() - self._seen
            if silence < _SILENCE:
                continue
            try:
                self._draw((self._state.at or self._began or 0.0) + silence)
            except RuntimeError:  # the state changed meanwhile: the next frame shows it
                continue
            except Exception:
                _log.exception("Progress cannot be shown any more; the run goes on.")
                return

    def _say(self, line: str) -> None:
        """Leave a line: above the live ones, if there are any."""
        if self._view is not None:
            self._view.say(f"headrace: {line}")
        elif self._as_json:
            self._say_object({"event": "note", "text": line})
        else:
            say(f"headrace: {line}", text_stream(self._stream))

    def _say_how_far(self, now: float) -> None:
        elapsed = present_elapsed(self._state, now)
        later = (mark for mark in _LINES if mark > elapsed)
        self._line = next(later, elapsed - elapsed % _LATER + _LATER)
        if self._as_json:
            self._say_object(progress_object(self._state, now))
        else:
            self._say(progress_line(self._state, now))

    def _say_object(self, found: dict[str, object]) -> None:
        say(json.dumps(found), text_stream(self._stream))


class RowsSoFar:
    """Says by ``say`` how many rows a run has read, behind ``words``: for one that goes before another."""

    def __init__(self, say: Callable[[str], None], words: str) -> None:
        self._tell, self._words, self._state = say, words, RunState()

    def attach(self, state: RunState) -> None:
        """Read the figures from ``state``."""
        self._state = state

    def on_event(self, _: Event) -> None:
        """Wait for ``tick``."""

    def tick(self) -> None:
        """Say it."""
        self._tell(f"{self._words}, {rows_text(self._state)}")


class TerminalView:
    """Lines at the foot of a terminal."""

    def __init__(self, stream: ForgivingStream) -> None:
        self._live = LiveLines(text_stream(stream))
        self._plain = os.environ.get("NO_COLOR", "") != ""
        self._bar = ("━", "─") if (stream.encoding or "").lower().replace("-", "") == "utf8" else ("#", ".")

    def draw(self, state: RunState, now: float, left: float | None, more: str = "") -> None:
        """Show how far the run is at ``now``; it still takes ``left`` seconds. ``more`` stands below."""
        columns, rows = self._live.size()
        lines = [self._first(state, now, left, columns)]
        stages = wrapped(visible(more), columns).split("\n") if more else stage_texts(state, now, columns)
        if len(stages) < rows - 1:
            lines += [self._styled(line, "2") for line in stages]
        self._live.draw(lines)

    def draw_share(self, words: str, share: float) -> None:
        """Show how much is done of something that is no run."""
        self._live.draw([f"{words}  {self._drawn_bar(share, MOST_BAR)}"])

    def _first(self, state: RunState, now: float, left: float | None, width: int) -> str:
        found, bar = fitting(fields(state, now, left), width)
        styles = {"phase": "1", "rows": "", "failed": "33", "elapsed": "2", "retries": "33"}
        texts = [
            self._drawn_bar(state.share or 0.0, bar)
            if field.name == "bar"
            else self._styled(field.text[:width], styles.get(field.name, ""))
            for field in found
        ]
        return "  ".join(texts)

    def _drawn_bar(self, share: float, width: int) -> str:
        done = int(share * width + 1e-9)
        full, empty = self._bar
        return self._styled(full * done, "36") + self._styled(empty * (width - done), "2")

    def _styled(self, text: str, style: str) -> str:
        return text if self._plain or not style or not text else f"\x1b[{style}m{text}\x1b[0m"

    def say(self, line: str) -> None:
        """Leave a line above."""
        self._live.say(line)

    def close(self) -> None:
        """Take away what is drawn."""
        self._live.close()


class NotebookView:
    """A bar in the output of the cell that runs: HTML that is replaced in its place, without widgets and scripts."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle: Any = display(_bundle("", ""), raw=True, display_id=True)
        self._shown = ""

    def draw(self, state: RunState, now: float, left: float | None) -> None:
        """Show how far the run is."""
        self._update(progress_html(state, now, left), progress_line(state, now, left))

    def say(self, line: str) -> None:
        """Leave a line."""
        say(one_line(line), sys.stdout)

    def close(self) -> None:
        """Take the bar away."""
        self._update("", "")

    def _update(self, html: str, words: str) -> None:
        if html != self._shown and self._handle is not None:
            self._shown = html
            self._handle.update(_bundle(html, words), raw=True)


def progress_html(state: RunState, now: float, left: float | None) -> str:
    """Return the bar and the words beside it.

    >>> print(progress_html(RunState(), 0.0, None))
    <div class="headrace-progress"><div style="...">starting &nbsp; 0:00 elapsed</div></div>
    """
    return rendered(
        Path(__file__).parent / "progress.html",
        percent=share_text(state.share).split()[0] if state.share is not None else "",
        fields=[field.text.strip() for field in fields(state, now, left) if field.text],
        stages=stage_texts(state, now, _WIDTH),
    )


def _bundle(html: str, words: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": words}


class ShrunkBatches:
    """The lines that say which steps get smaller batches from now on, as memory did not suffice.

    >>> shrunk = ShrunkBatches()
    >>> for before in (1000, 500):
    ...     shrunk.add(BatchShrunk(0, "predict(Net)", before, before // 2), now=0.0)
    >>> shrunk.lines(0.1), shrunk.lines(0.6), shrunk.lines(0.7)
    ([], ['memory did not suffice for 1,000 rows in predict(Net): it gets 250 at a time now'], [])
    """

    def __init__(self) -> None:
        self._first: dict[str, int] = {}  # step → rows that did not fit at first
        self._rows: dict[str, int] = {}  # step → rows that it gets now, the fewest of all workers
        self._since: dict[str, float] = {}  # steps that have no line yet → time of their last event

    def add(self, event: BatchShrunk, now: float) -> None:
        """Note that a worker gives a step fewer rows at a time."""
        if event.now < self._rows.get(event.step, event.before):
            self._first.setdefault(event.step, event.before)
            self._rows[event.step] = event.now
            self._since[event.step] = now

    def lines(self, now: float) -> list[str]:
        """Return a line for each step whose batches have shrunk, and not again in the last half second."""
        due = [step for step, since in self._since.items() if now - since >= _QUIET]
        for step in due:
            del self._since[step]
        return [
            f"memory did not suffice for {self._first[step]:,} rows in {step}: it gets {self._rows[step]:,} at a "
            "time now"
            for step in due
        ]


def retirement(event: WorkerRetired) -> str:
    """Say which worker was ended for memory, and why.

    >>> retirement(WorkerRetired(0, 3, 9 << 20, 9 << 20, True, False, "it took 9 MiB"))
    'worker 3 is ended for memory and replaced: it took 9 MiB'
    """
    follows = "and replaced" if event.replaced else "and its pool has one less"
    return f"worker {event.worker} is ended for memory {follows}: {event.reason}"
