"""A second request for one that takes longer than nearly all others: the first answer counts, both are paid for."""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

SHARE = 0.95
"""A request is late if it takes longer than this share of those before."""
LEAST = 40
"""So many answers have to be known before any request is late."""
KNOWN = 500
HEDGED = "Hedged"
"""By this name second requests are counted, beside what was sent again."""


class Latencies:
    """How long the last answers took, or how long they were: ``share`` of them are not above ``late``.

    >>> latencies = Latencies()
    >>> for seconds in range(1, 101):
    ...     latencies.add(seconds)
    >>> latencies.late, Latencies().late
    (96, None)
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._last: deque[float] = deque(maxlen=KNOWN)
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        """Note an answer."""
        if len(self._last) == KNOWN:
            del self._sorted[bisect.bisect_left(self._sorted, self._last[0])]
        self._last.append(seconds)
        bisect.insort(self._sorted, seconds)

    @property
    def late(self) -> float | None:
        """What is late or long, if it is more; None while too little is known."""
        return self._sorted[int(self._share * len(self._sorted))] if len(self._sorted) >= LEAST else None


_losers: WeakSet[asyncio.Task[object]] = WeakSet()


def has_lost() -> bool:
    """Say whether the present task was cancelled as another was answered first."""
    return asyncio.current_task() in _losers


async def first_of(
    begin: Callable[[], Coroutine[Any, Any, T]],
    again: Callable[[], Coroutine[Any, Any, T] | None],
    late: float | None,
) -> tuple[T, bool]:
    """Return the first answer; it is asked for again after ``late`` seconds, if ``again`` gives a call.

    The other is cancelled; the second result says whether there was one. Raises what the first has failed with, where
    both do.
    """
    tasks = [asyncio.create_task(begin())]
    try:
        if late is not None and not (await asyncio.wait(tasks, timeout=late))[0]:
            second = again()
            if second is not None:
                tasks.append(asyncio.create_task(second))
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    for other in pending:
                        _losers.add(other)
                    return task.result(), bool(pending)
        return tasks[0].result(), False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
