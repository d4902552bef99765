"""Ctrl-C, and what is taken for one: the first commits what is done and stops, the second ends the run at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Raising:
    """A signal handler that raises an interrupt. Only these, and Python's own for Ctrl-C, ever wait for a commit."""

    def __init__(self, interrupt: Callable[[int], BaseException]) -> None:
        self._interrupt = interrupt

    def __call__(self, number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise self._interrupt(number)


@contextlib.contextmanager
def committing(stop: Callable[[], None], say: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` and ``say`` at the first interrupt, and raise it when the body has ended.

    Whatever handler the program has set itself stays, and so does a signal that is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    ours = {
        number: handler
        for number, handler in before.items()
        if isinstance(handler, Raising) or handler is signal.default_int_handler
    }
    asked: list[signal.Signals] = []

    def first(number: int, frame: Any) -> None:
        restore()
        asked.append(signal.Signals(number))
        stop()
        threading.Thread(target=say, daemon=True).start()  # a handler may have interrupted another line

    def restore() -> None:
        for number, handler in ours.items():
            signal.signal(number, handler)

    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        if not asked:
            restore()
    if asked:
        ours[asked[0]](asked[0], None)
