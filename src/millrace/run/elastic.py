"""How many workers a pool should have, between its bounds. Pure, but for what it remembers."""

from __future__ import annotations

from collections.abc import Mapping

GROW_AFTER = 0.5  # seconds in which all workers were busy and work was waiting
SHRINK_AFTER = 5.0  # seconds in which some worker had nothing to do


class Elastic:
    """Lets a pool grow while work waits for it, and shrink while workers are idle.

    A pool doubles at a time, since work that waits is sure; it loses one worker at a time, since idleness may pass.

    >>> pool = Elastic(1, 8)
    >>> [pool.wanted({1: 2}, waiting=9, now=now) for now in (0.0, 0.4, 0.5)]
    [1, 1, 2]
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._size = least
        self._pressed: float | None = None  # since when all are busy and work waits
        self._idle: float | None = None  # since when somebody has nothing to do

    @property
    def size(self) -> int:
        """How many workers there should be now."""
        return self._size

    def lose(self) -> None:
        """Have one worker less from now on, and never more than that."""
        self._most = self._size = max(1, self._size - 1)
        self._least = min(self._least, self._most)

    def wanted(self, loads: Mapping[int, int], *, waiting: int, now: float) -> int:
        """Return how many workers there should be; ``loads`` counts each one's calls, ``waiting`` pieces of work."""
        busy = bool(loads) and all(loads.values())
        if not (busy and waiting):
            self._pressed = None
        elif self._pressed is None:
            self._pressed = now
        elif now - self._pressed >= GROW_AFTER and self._size < self._most:
            self._size = min(self._most, self._size + min(self._size, waiting))
            self._pressed = now
        if busy or waiting:
            self._idle = None
        elif self._idle is None:
            self._idle = now
        elif now - self._idle >= SHRINK_AFTER and self._size > self._least:
            self._size -= 1
            self._idle = now
        return self._size
