"""How long a thread has decoded what it read: a source that does both says which part of its time was decoding."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Spent(threading.local):
    seconds = 0.0


_spent = _Spent()


@contextmanager
def decoding() -> Iterator[None]:
    """Count the time of the ``with`` block as decoding, no longer as reading.

    >>> before = decoded()
    >>> with decoding():
    ...     pixels = bytes(1000)
    >>> decoded() > before
    True
    """
    start = time.perf_counter()
    try:
        yield
    finally:
        _spent.seconds += time.perf_counter() - start


def decoded() -> float:
    """Return the seconds that this thread has spent on decoding so far."""
    return _spent.seconds
