"""What goes out of a run and what comes in: events for observers, and what is asked of it by Ctrl-C or a file."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.door import annex, completed
from headrace.core.events import EVERY_ROW, Event, RunAsked
from headrace.core.files import safe_files
from headrace.core.model_ports import ObserverParts
from headrace.driver.ports import NoObserver
from headrace.errors import ArgumentError, nearest
from headrace.observers.record import EVENTS, Log, Record
from headrace.observers.run_state import RunState
from headrace.options import RunOptions, variable, variable_of
from headrace.output.names import ASKED
from headrace.session import invocation

if TYPE_CHECKING:
    from headrace.observers.progress import Progress


_log = logging.getLogger("headrace")


def steady_time() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that never goes back, whatever happens to the system's."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


class EventBus(NoObserver):
    """Adds every event to the state of the run, then hands it to every observer.

    Observers have ``on_event``, and may have what is in ``core.model_ports.ObserverParts``.
    """

    def __init__(self, observers: list[Any], *, clock: Callable[[], float] | None = None) -> None:
        self.state = RunState()
        self._clock = clock or steady_time()
        self._observers: list[Any] = []
        self.state.tick(self._clock())
        for observer in observers:
            self.add(observer)

    @classmethod
    def of(cls, options: RunOptions, folder: Path, progress: Progress | None = None) -> EventBus:
        """Return the observers for these options, and ``progress``; the record goes to the run's ``folder``."""
        shown: list[Any] = [progress] if progress is not None else []
        if options.watch and (pages := annex("report.live")) is not None:
            shown.append(pages.Watch(folder))
        return cls([Record(folder / EVENTS), *shown, *options.observers])

    def add(self, observer: Any) -> None:
        """Add an observer; one that has ``attach`` gets the state of the run."""
        self._observers.append(observer)
        try:
            completed(observer, ObserverParts).attach(self.state)
        except Exception as error:
            self._drop(observer, error)

    def on_event(self, event: Event) -> None:
        """Hand an event to everybody."""
        self.state.add(event, self._clock())
        for observer in list(self._observers):
            try:
                observer.on_event(event)
            except Exception as error:
                self._drop(observer, error)

    def tick(self) -> None:
        """Let observers draw and write; called about five times a second."""
        self.state.tick(self._clock())
        self._each(lambda observer: observer.tick())

    def close(self) -> None:
        """The run is over; a second time nothing happens."""
        self._each(lambda observer: observer.close())
        self._observers = []

    def _each(self, call: Callable[[ObserverParts], None]) -> None:
        for observer in list(self._observers):
            try:
                call(completed(observer, ObserverParts))
            except Exception as error:
                self._drop(observer, error)

    def _drop(self, observer: Any, error: Exception) -> None:
        name = type(observer).__name__
        if excuse := completed(observer, ObserverParts).excuse(error):
            _log.warning("%s", excuse)
        else:
            _log.exception("The observer %s failed and gets no more events; the run goes on.", name)
        self._observers = [each for each in self._observers if each is not observer]


@contextlib.contextmanager
def progress_shown(options: RunOptions) -> Iterator[Progress | None]:
    """Show that something goes on, unless the options forbid it."""
    if options.progress is False:
        yield None
        return
    from headrace.observers.progress import Progress

    command = invocation.current()
    with contextlib.closing(Progress(as_json=command is not None and command.wants_json)) as progress:
        progress.begin()
        yield progress


def environment_observers() -> tuple[Any, ...]:
    """Return the observers that ``HEADRACE_LOG``, ``HEADRACE_METRICS_PORT`` and ``HEADRACE_OBSERVERS`` ask for."""
    found = (observers_from_text(name, text) for name in _FROM_TEXT if (text := variable(name)))
    return tuple(observer for each in found for observer in each)


def observers_from_text(name: str, text: str, place: str = "") -> tuple[Any, ...]:
    """Return what ``log``, ``metrics_port`` or ``observers`` asks for, in a variable or at another ``place``."""
    try:
        return _FROM_TEXT[name](text)
    except ArgumentError as error:
        raise ArgumentError(f"{place or variable_of(name)} is {text!r}: {error}") from None


def _by_name(text: str) -> tuple[Any, ...]:
    """Return observers that need no arguments, by their names."""
    from headrace.observers import OBSERVERS

    found = []
    for name in filter(None, map(str.strip, text.split(","))):
        kind = OBSERVERS.get(name)
        if kind is None:
            raise ArgumentError(f"there is no observer {name!r}.{nearest(name, OBSERVERS.names())}")
        try:
            found.append(kind())
        except TypeError as error:
            raise ArgumentError(f"{name} has to be given in a script, with its arguments: {error}") from None
    return tuple(found)


def _prometheus(text: str) -> Any:
    from headrace.observers.prometheus import Prometheus

    try:
        port: Any = int(text)
    except ValueError:
        port = text  # refused with its text
    return Prometheus(port=port)


_FROM_TEXT: dict[str, Callable[[str], tuple[Any, ...]]] = {
    "log": lambda text: (Log(text),),
    "metrics_port": lambda text: (_prometheus(text),),
    "observers": _by_name,
}


# ---------------------------------------------------------------- what is asked of a run while it goes on

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
