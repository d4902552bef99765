"""How fast a run is of late, and how long it will take: one rule for whoever says it. No stream, no clock."""

from __future__ import annotations

from collections import deque

_WINDOW = 30.0  # seconds over which speed is measured: long enough to be calm, short enough to follow
_SAMPLES = 1.0  # seconds between two samples


class Pace:
    """Told how far a driver is, now and then; asked for its speed and the time left.

    >>> pace = Pace(0.0, rows=250, shards=3)
    >>> pace.look(5.0, rows=750, shards=3)
    100.0
    >>> pace.left(250, by_rows=True)
    2.5
    """

    def __init__(self, now: float, *, rows: int, shards: int) -> None:
        self._first = now, rows, shards
        self._samples: deque[tuple[float, int, int]] = deque([self._first])
        self._now = self._first

    def look(self, now: float, *, rows: int, shards: int) -> float:
        """Return rows per second of late."""
        self._now = now, rows, shards
        if now - self._samples[-1][0] >= _SAMPLES:
            self._samples.append(self._now)
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW:
            self._samples.popleft()
        return self._rate(self._samples[0], 1)

    def left(self, left: int, *, by_rows: bool) -> float | None:
        """Return the seconds that so many rows, or shards, will take; None while nothing was done at all.

        Where nothing got done of late, as a batch takes its time or rows are read again, all that was done counts.
        """
        unit = 1 if by_rows else 2
        rate = self._rate(self._samples[0], unit) or self._rate(self._first, unit)
        return max(0, left) / rate if rate > 0 else None

    def _rate(self, since: tuple[float, int, int], unit: int) -> float:
        elapsed = self._now[0] - since[0]
        return max(0.0, (self._now[unit] - since[unit]) / elapsed) if elapsed > 0 else 0.0
