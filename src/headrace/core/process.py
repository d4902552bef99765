"""What holds for this process as a whole: whether it is a worker, and whose the numbers 0 to 2 are."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_worker = False  # a process is one from its first moment on, or never


def become_worker() -> None:
    """Say that this process works for a driver, which alone decides when a run ends."""
    global _worker
    _worker = True


def is_worker() -> bool:
    """Say whether this process works for a driver."""
    return _worker


def hold_standard_streams() -> None:
    """Open the null device in the place of standard streams that are closed.

    Whatever is opened next would take their numbers: a journal or a socket, into which a library then writes its
    messages, or which a child process gets for its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            if opened == number:
                os.set_inheritable(opened, True)
            else:  # another thread was faster
                os.close(opened)


@contextmanager
def importing() -> Iterator[None]:
    """Let the garbage collector rest while much is imported: it would look at all of that again and again.

    >>> with importing():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
