"""Waiting for others: how long before another try, and for what another process holds."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def backoff(tries: int, first: float, longest: float, *, spread: float = 0.5) -> float:
    """Return how many seconds to wait after ``tries`` tries that failed, one at least.

    It is ``first`` after the first, twice as long each time, and ``longest`` at most. ``spread``: the share of it
    that is drawn by lot, so that those who failed together do not come back together.

    >>> [backoff(tries, 0.5, 3.0, spread=0.0) for tries in (1, 2, 3, 4, 1_000)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    >>> 0.25 <= backoff(1, 0.5, 3.0) <= 0.5
    True
    """
    import random  # which takes a millisecond

    whole = min(longest, first * 2.0 ** min(max(tries, 1) - 1, 60))
    return whole * (1 - spread * random.random()) if spread else whole


def lock(fd: int, *, patience: float | None = 0.0, shared: bool = False) -> bool:
    """Take the lock of an open file; say whether it was free within ``patience`` seconds. None: wait for ever.

    It is held until the file is closed, or ``unlock`` is called. ``shared``: others may hold it in the same way.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if patience is None:
        fcntl.flock(fd, kind)
        return True
    until, tries = time.monotonic() + patience, 0
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            tries += 1
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, backoff(tries, 0.001, 0.1, spread=0.0)))
        else:
            return True


async def when_free(look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what ``look`` returns for these arguments.

    While another process holds what it needs, it raises ``BlockingIOError``, and is called again after a while. The
    event loop goes on in the meantime.
    """
    import asyncio  # those who wait otherwise do without

    tries = 0
    while True:
        try:
            return look(*args, **kwargs)
        except BlockingIOError:
            tries += 1
        await asyncio.sleep(backoff(tries, 0.001, 0.1))


def unlock(fd: int) -> None:
    """Release the lock of an open file."""
    fcntl.flock(fd, fcntl.LOCK_UN)
