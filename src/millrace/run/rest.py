"""A pause before what ended a worker is tried again. Pure: no I/O, no thread, no clock."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from typing import Generic, TypeVar

FIRST = 0.1  # seconds; twice as long each time
LONGEST = 5.0

T = TypeVar("T")


class Rest(Generic[T]):
    """Keeps news of deaths back: whatever a worker died of may pass by itself, such as a machine short of memory."""

    def __init__(self) -> None:
        self._deaths: Counter[int] = Counter()
        self._waiting: list[tuple[float, int, T]] = []
        self._order = itertools.count()

    def add(self, shard: int, news: T, now: float) -> None:
        """Take news of a worker that died over a shard."""
        pause = min(LONGEST, FIRST * 2 ** self._deaths[shard])
        self._deaths[shard] += 1
        heapq.heappush(self._waiting, (now + pause, next(self._order), news))

    def over(self, now: float) -> list[T]:
        """Return what has rested long enough."""
        rested = []
        while self._waiting and self._waiting[0][0] <= now:
            rested.append(heapq.heappop(self._waiting)[2])
        return rested

    def left(self, now: float) -> float:
        """Seconds until there is something; without end, if nothing rests."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else float("inf")
