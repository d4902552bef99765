"""How far a run is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

from headrace.core.events import BatchShrunk, Event, PoolWaits, RunFinished, RunStarted, WorkerRetired
from headrace.core.human import count, countdown, plural, size
from headrace.core.terminal import one_line, say, visible
from headrace.observers.run_state import RETRIED_SHARDS, RunState

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_PATIENCE = 0.5  # seconds of running before rich is imported: a run that is over by then needs no bar
_QUIET = 0.5  # seconds: a batch is often halved several times in a row, and the last size is what matters
_RETIREMENTS = 5  # that have a line of their own


class Progress:
    """Shows rows, speed, shards, bytes, retries and the time left.

    On a terminal a bar, drawn whenever ``tick`` is called (about five times a second); what is printed meanwhile
    appears above it. Elsewhere a line every ``every`` seconds. There is one more line where a batch did not fit into
    memory, or a worker was ended for memory. If the stream breaks, nothing more is shown; the run goes on.

    Parameters
    ----------
    stream
        Where to show; standard error by default.
    every
        Seconds between two lines, where there is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, every: float = 10.0) -> None:
        self._stream = _Forgiving(stream or sys.stderr)
        self._every = every
        self._state = RunState()
        self._running = False
        self._shrunk = ShrunkBatches()
        self._bar: _Bar | None = None
        self._next = 0.0
        self._retirements = 0

    def attach(self, state: RunState) -> None:
        """Read all figures from ``state``, which has each event before this observer gets it."""
        self._state = state

    def on_event(self, event: Event) -> None:
        """See an event; drawing waits for ``tick``."""
        now = self._state.at
        if isinstance(event, RunStarted):
            self._running, self._shrunk = True, ShrunkBatches()
            self._next = now + (_PATIENCE if self._stream.isatty() else self._every)
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
        if not self._running or self._stream.broken:
            return
        now = self._state.at
        for line in self._shrunk.lines(now):
            self._say(line)
        if self._bar is not None:
            self._bar.draw(self._state)
        elif now >= self._next and self._stream.isatty():
            self._bar = _Bar(self._stream)
            self._bar.draw(self._state)
        elif now >= self._next:
            self._say(progress_line(self._state, now))
            self._next = now + self._every

    def _say(self, line: str) -> None:
        """Leave a line: above the bar, if there is one."""
        if self._bar is not None:
            self._bar.say(f"headrace: {line}")
        else:
            say(f"headrace: {line}", cast(TextIO, self._stream))

    def close(self) -> None:
        """Take the bar away and give the standard streams back. May be called more than once."""
        self._running = False
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


def progress_line(state: RunState, now: float) -> str:
    """Return how far a run is, as one line.

    >>> state = RunState()
    >>> state.add(RunStarted("r", "out", 12, 3, 250_000, 1_000_000, 2), at=100.0)
    >>> state.tick(at=105.0)
    >>> progress_line(state, 105.0)
    '250 k of 1 M rows, 0 rows/s, 3/12 shards, 0 B, ETA -:--'
    """
    expected, left = state.rows_expected, state.time_left(now)
    parts = [
        count(state.rows) + (f" of {count(expected)} rows" if expected is not None else " rows"),
        f"{count(state.speed(now))} rows/s",
        f"{state.shards_done}/{state.shards} shards",
        size(state.bytes),
    ]
    if state.failed:
        parts.append(f"{plural(state.failed, 'row')} failed")
    if retries := state.counts[RETRIED_SHARDS]:
        parts.append(plural(retries, "retry", "retries"))
    parts.append(f"ETA {'-:--' if left is None else countdown(left)}")
    return ", ".join(parts)


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


class _Bar:
    """One line at the foot of a terminal, drawn by rich in the driver's thread."""

    def __init__(self, stream: io.TextIOBase) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._console = Console(file=cast(TextIO, stream), force_terminal=True)
        self._width = BarColumn(bar_width=20)
        text = TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
        )
        self._rich: RichProgress = Progress(
            self._width,
            text,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=_is_terminal(sys.stdout),  # prints that go to a file must still go there
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._task = self._rich.add_task("", total=None)
        self._rich.start()

    def draw(self, state: RunState) -> None:
        text = one_line(progress_line(state, state.at))
        self._width.bar_width = max(5, min(40, self._console.width - len(text) - 2))
        share = state.share
        total = None if share is None else 1.0
        self._rich.update(self._task, completed=share or 0.0, total=total, description=text, refresh=True)

    def say(self, line: str) -> None:
        self._console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._rich.stop()


class _Forgiving(io.TextIOBase):
    """A text stream that ignores what is written once the one below is broken: a closed pipe, a closed terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        self._below = stream or io.StringIO()
        self.broken = stream is None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._below, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if not self.broken:
            try:
                self._below.write(text)
            except (OSError, ValueError):
                self.broken = True
        return len(text)

    def flush(self) -> None:
        if not self.broken:
            try:
                self._below.flush()
            except (OSError, ValueError):
                self.broken = True

    def isatty(self) -> bool:
        return _is_terminal(self._below)

    def fileno(self) -> int:
        return self._below.fileno()


def _is_terminal(stream: TextIO | None) -> bool:
    """Say whether a stream is a terminal that can move its cursor; closed streams are not."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    except (OSError, ValueError):
        return False
