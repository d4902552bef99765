"""Signals by which a scheduler or a terminal that goes away ends a command: they end it as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from headrace.cli.exits import INTERRUPTED
from headrace.session.interrupts import Raising

_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal ends the command; ``code`` is the exit code that shells know for it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Take the first SIGTERM or SIGHUP for a Ctrl-C; the second one ends the process at once.

    One that is ignored, such as SIGHUP under ``nohup``, stays ignored, and whoever handles it goes on to do so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in _ENDS if signal.getsignal(number) is signal.SIG_DFL]
    end = Raising(Ended)
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def code_of_interrupt(error: BaseException) -> int:
    """Return the exit code of a command that was interrupted.

    >>> code_of_interrupt(KeyboardInterrupt()), code_of_interrupt(Ended(15))
    (130, 143)
    """
    return error.code if isinstance(error, Ended) else INTERRUPTED
