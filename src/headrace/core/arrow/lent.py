"""Python's memory that Arrow's threads read: the process does not end while they hold it.

A reader of Arrow's reads ahead in a thread. If that thread lets go of memory of Python while the interpreter ends,
the process aborts: the thread cannot get the interpreter's lock any more, and C++ takes its end for an error.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import time
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

_SECONDS = 0.5
_numbers = itertools.count()
_held: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def lent(data: bytes | memoryview) -> Any:
    """Return the same memory as an object that is waited for when the process ends.

    >>> bytes(lent(b"ab"))
    b'ab'
    """
    return held(np.frombuffer(data, np.uint8))


def held(thing: Any) -> Any:
    """Return an object, such as a stream, that is waited for when the process ends."""
    _held[next(_numbers)] = thing
    return thing


def lent_stream(data: bytes) -> pa.BufferReader:
    """Return a stream of ``data`` for a reader that reads ahead."""
    return pa.BufferReader(pa.py_buffer(lent(data)))


@atexit.register
def _wait() -> None:
    """Wait until Arrow's threads have let go, for a moment: they need only their turn."""
    until = time.monotonic() + _SECONDS
    while len(_held) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.001)
