"""What is asked of a run while it goes on, by Ctrl-C or by a file. The command line imports it for every command."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.asked import EVERY_ROW, RunAsked
from headrace.core.events import Event
from headrace.core.files import safe_files
from headrace.output.names import ASKED

_log = logging.getLogger("headrace")

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


class Ended(KeyboardInterrupt):
    """A signal ends the program, as Ctrl-C does; ``code`` is the exit code that shells know for it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}; finished work is kept")
        self.code = 128 + number


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Take the first SIGTERM or SIGHUP for a Ctrl-C; the second one ends the process at once.

    One that is ignored, such as SIGHUP under ``nohup``, stays ignored, and whoever handles it goes on to do so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in _NUMBERS[1:] if signal.getsignal(number) is signal.SIG_DFL]
    end = Raising(Ended)
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


_MOST_BYTES = 10_000  # of a file that asks for something


class Requests:
    """An observer that looks for the file by which who watches the run asks for something, and passes it on.

    It says how the run is to go on, all of it, so whoever writes it last is heard. What was asked of an earlier
    driver does not count.
    """

    def __init__(self, folder: Path, ask: Callable[[RunAsked], None], *, every_row: bool = False) -> None:
        """``every_row``: none may be set aside, whoever asks for that."""
        self._path = folder / ASKED
        self._ask = ask
        self._every_row = every_row
        self._seen: tuple[int, int] | None = None  # of the file: its number, and when it was written
        self.close()

    def on_event(self, event: Event) -> None:
        """See no event."""

    def tick(self) -> None:
        """Look whether there is another file."""
        try:
            found = os.stat(self._path, follow_symlinks=False)
            if self._seen == (seen := (found.st_ino, found.st_mtime_ns)):
                return
            self._seen = seen
            asked = msgspec.json.decode(safe_files.content(self._path, _MOST_BYTES), type=RunAsked)
            if self._every_row and asked.on_error == "reject":
                _log.warning("on_error='reject' is left out: %s", EVERY_ROW)
                asked = msgspec.structs.replace(asked, on_error=None)
            self._ask(msgspec.structs.replace(asked, held=False))
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("What %s asks of the run is left out: %s", self._path, error)

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink()
