"""How far a run is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO, cast

from millrace.core.events import Event, PoolWaits, RunFinished, RunStarted, WorkerRetired
from millrace.observers.ceilings import Ceilings, retirement
from millrace.observers.tally import Tally
from millrace.screen import one_line, say, visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_PATIENCE = 0.5  # seconds of running before rich is imported: a run that is over by then needs no bar
_RETIREMENTS = 5  # that are told one by one


class Progress:
    """Shows rows, speed, shards, bytes, retries and the time left.

    On a terminal a bar, drawn whenever ``tick`` is called (about five times a second); what is printed
    meanwhile appears above it. Elsewhere a line every ``every`` seconds. A line more where memory did not suffice
    for a batch, or a worker had to go. A stream that breaks ends the show, never the run.

    Parameters
    ----------
    stream
        Where to show; standard error by default.
    every
        Seconds between two lines, where there is no terminal.
    clock
        Seconds that only ever grow.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = _Forgiving(stream or sys.stderr)
        self._every = every
        self._clock = clock
        self._tally: Tally | None = None
        self._ceilings = Ceilings()
        self._bar: _Bar | None = None
        self._next = 0.0
        self._retirements = 0

    def on_event(self, event: Event) -> None:
        """Count; drawing waits for ``tick``."""
        if isinstance(event, RunStarted):
            now = self._clock()
            self._tally = Tally(event, now)
            self._ceilings = Ceilings()
            self._next = now + (_PATIENCE if self._stream.isatty() else self._every)
        elif isinstance(event, RunFinished):
            self.close()
        elif self._tally is not None:
            self._tally.add(event)
            self._ceilings.add(event, self._clock())
            if isinstance(event, WorkerRetired) and not event.idle and self._retirements < _RETIREMENTS:
                self._retirements += 1
                self._say(retirement(event))
            if isinstance(event, PoolWaits):
                wanted = "a worker" if event.wanted == 1 else f"{event.wanted} workers"
                self._say(
                    f"{event.pool} waits for the cluster to place {wanted} ({event.each}), "
                    f"{event.seconds:.0f} s so far"
                )

    def tick(self) -> None:
        """Draw if it is time."""
        if self._tally is None or self._stream.broken:
            return
        now = self._clock()
        for line in self._ceilings.news(now):
            self._say(line)
        if self._bar is not None:
            self._bar.draw(self._tally, now)
        elif now < self._next:
            self._tally.look(now)
        elif self._stream.isatty():
            self._bar = _Bar(self._stream)
            self._bar.draw(self._tally, now)
        else:
            self._say(self._tally.describe(now))
            self._next = now + self._every

    def _say(self, line: str) -> None:
        """Leave a line: above the bar, if there is one."""
        if self._bar is not None:
            self._bar.say(f"millrace: {line}")
        else:
            say(f"millrace: {line}", cast(TextIO, self._stream))

    def close(self) -> None:
        """Take the bar away and give the standard streams back. May be called more than once."""
        self._tally = None
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


class _Bar:
    """One line at the foot of a terminal, drawn by rich and by nobody's thread."""

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

    def draw(self, tally: Tally, now: float) -> None:
        text = one_line(tally.describe(now))
        self._width.bar_width = max(5, min(40, self._console.width - len(text) - 2))
        share = tally.share
        total = None if share is None else 1.0
        self._rich.update(self._task, completed=share or 0.0, total=total, description=text, refresh=True)

    def say(self, line: str) -> None:
        self._console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._rich.stop()


class _Forgiving(io.TextIOBase):
    """A text stream that turns silent when the one below breaks: a closed pipe, a terminal that went away."""

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
