"""How fast a run is: what was done by when, and from that the speed and the time that is left. No clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

WINDOW = 30.0  # seconds over which speed is measured: long enough to be steady, short enough to follow
SAMPLE = 1.0  # seconds between two samples
LATE = 6.0  # seconds by which a sample may lag behind: a record has one every 5 s at least, written twice a second

_FIRST_SAMPLES = 0.15  # seconds between the first ones

Unit = Literal["rows", "shards"]


class Pace:
    """Rows and shards that were done, as (time, number) for the last half minute, and since the beginning.

    >>> pace = Pace()
    >>> pace.restart(100.0, rows=0, shards=0)
    >>> pace.note(104.0, rows=200, shards=1)
    >>> pace.rate(104.0, "rows"), pace.time_left(104.0, "rows", total=300)
    (50.0, 2.0)
    """

    def __init__(self) -> None:
        self.begun = False  # whether anything was noted
        self.since: tuple[float, int, int] = (0.0, 0, 0)  # the time, rows and shards from which it counts
        self._done: dict[Unit, deque[tuple[float, int]]] = {"rows": deque(), "shards": deque()}

    def restart(self, at: float, rows: int, shards: int) -> None:
        """Count from here on."""
        self.since, self.begun = (at, rows, shards), True
        for points in self._done.values():
            points.clear()
        self.note(at, rows, shards)

    def note(self, at: float, rows: int, shards: int) -> None:
        """Note how much is done at ``at``."""
        for points, done in zip(self._done.values(), (rows, shards), strict=True):
            if not points or done != points[-1][1]:
                points.append((at, done))
            while len(points) > 2 and points[1][0] <= at - WINDOW - LATE:
                points.popleft()

    def due(self, at: float, noted: float) -> bool:
        """Tell whether there should be another sample, after the one at ``noted``."""
        return at - noted >= min(SAMPLE, max(_FIRST_SAMPLES, 0.2 * (at - self.since[0])))

    def time_left(self, now: float, unit: Unit, total: int) -> float | None:
        """Return the seconds that the rest will take; None while nothing was done at all.

        Work arrives in portions: since the last one, time went on, but no more of it counts than portions take.
        Where nothing was done in the last half minute, as a batch takes long or rows are read again, the rate since
        the first worker was ready counts.
        """
        points = self._points(unit)
        left = max(0, total - points[-1][1]) if points else 0
        if rate := self.rate(now, unit):
            waited = min(max(0.0, now - points[-1][0]), _longest_gap(points))
            return max(0.0, left / rate - waited)
        rate = self._whole_rate(now, unit)
        return left / rate if rate > 0 else None

    def rate(self, now: float, unit: Unit) -> float:
        """Return the rate over the window that ends when something was done last, or later if more is overdue."""
        points = self._points(unit)
        if not points:
            return 0.0
        end = max(points[-1][0], now - max(LATE, _longest_gap(points)))
        start = max(points[0][0], end - WINDOW)
        done = points[-1][1] - _done_at(points, start)
        return max(0.0, done) / (end - start) if end > start else 0.0

    def _points(self, unit: Unit) -> list[tuple[float, int]]:
        """Return when how much was done, as far as it is remembered.

        The first portion takes longer where several workers share the work, and does not count once there are more.
        """
        points = list(self._done[unit])
        began = bool(points) and points[0][0] == self.since[0]
        return points[1:] if began and len(points) > 3 else points

    def _whole_rate(self, now: float, unit: Unit) -> float:
        if not self._done[unit]:
            return 0.0
        since, *before = self.since
        done = self._done[unit][-1][1] - before[unit == "shards"]
        return done / (now - since) if now > since else 0.0


def _longest_gap(points: Sequence[tuple[float, int]]) -> float:
    return max((later[0] - earlier[0] for earlier, later in pairwise(points)), default=0.0)


def _done_at(points: Sequence[tuple[float, int]], time: float) -> float:
    """Return what was done at a time: between two points, work went on evenly."""
    before = points[0]
    for point in points:
        if point[0] > time:
            share = (time - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]
