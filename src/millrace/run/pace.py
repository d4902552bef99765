"""How long batches take, told to the tuner of their size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.run.batching import Tuner

_WAITS = Path(
    "/proc/thread-self/schedstat"
)  # where there is one: seconds at work, seconds of waiting for a core


def undisturbed() -> float:
    """Return a time that stands still while this thread could run and other processes had its core.

    Long batches meet others more often than short ones do, and would seem slower than they are.
    """
    try:
        waited = int(_WAITS.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        waited = 0.0
    return time.perf_counter() - waited


class Pace:
    """Takes the time of one stream of batches; ``tuner`` None: nobody wants to know.

    One batch at a time, that is the time of making its view, of the call, and of converting the result. Where several
    are in flight, calls overlap with each other and with all else, so it is the time from one that landed to the one
    that landed as many later.
    """

    def __init__(self, tuner: Tuner | None, depth: int, clock: Callable[[], float] | None = None) -> None:
        self._tuner = tuner
        self._depth = depth
        self._clock = clock or (undisturbed if depth == 1 else time.perf_counter)
        self._spent = 0.0
        self._last: float | None = None  # when a batch landed, or the first one began
        self._since = 0.0
        self._rows = 0  # of each batch that landed since then
        self._count = 0
        self._skip = 0
        self._size = tuner.size if tuner is not None else 0
        self._heard = False

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Count the block's time for the batch at hand."""
        if self._tuner is None or self._tuner.settled is not None:
            yield
            return
        start = self._clock()
        if self._last is None:
            self._last = start
        try:
            yield
        finally:
            self._spent += self._clock() - start

    def landed(self, rows: int) -> bool:
        """Hear that a batch came back; True if that settled the size."""
        spent, self._spent = self._spent, 0.0
        if self._tuner is None or self._tuner.settled is not None:
            return False
        if self._depth > 1:
            return self._overlapped(self._tuner, rows)
        return self._tell(self._tuner, rows, spent, 1)

    def _overlapped(self, tuner: Tuner, rows: int) -> bool:
        now = self._clock()
        before, self._last = self._last, now
        if self._skip or before is None:
            self._skip = max(0, self._skip - 1)
            self._count = 0
            return False
        if rows != self._rows or not self._count:
            self._rows, self._count, self._since = rows, 0, before
        self._count += 1
        if self._count < self._depth:
            return False
        count, self._count = self._count, 0
        return self._tell(tuner, rows, now - self._since, count)

    def _tell(self, tuner: Tuner, rows: int, seconds: float, batches: int) -> bool:
        self._heard = self._heard or rows == tuner.size
        return tuner.measured(rows, seconds, batches)

    def broken(self) -> None:
        """Hear that a batch failed: neither its time, nor that of those beside it, says anything."""
        self._spent = 0.0
        self._skip = self._depth

    def ended(self) -> bool:
        """Hear that there are no more rows; True if that settled the size."""
        if self._tuner is None or self._heard or self._tuner.size != self._size:
            return False
        return self._tuner.starved()
