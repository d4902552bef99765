"""Telling a Ctrl-C from a ``KeyboardInterrupt`` that the user's code raises by itself, in the driver's process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_noted() -> Iterator[list[int]]:
    """Yield a list that gets each SIGINT which comes meanwhile; what is to happen then, happens."""
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if handler is None:  # it is not Python's, and might raise anything at any time
        yield [signal.SIGINT]
    elif not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield noted  # no signal raises anything here
    else:

        def note(number: int, frame: Any) -> None:
            noted.append(number)
            handler(number, frame)

        signal.signal(signal.SIGINT, note)
        try:
            yield noted
        finally:
            if signal.getsignal(signal.SIGINT) is note:  # else the user's code has set one of its own
                signal.signal(signal.SIGINT, handler)
