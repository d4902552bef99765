"""What goes out of a run: events, for its state and for observers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.door import annex, completed
from headrace.core.events import Event
from headrace.core.model_ports import ObserverParts
from headrace.driver.ports import NoObserver
from headrace.errors import ArgumentError, nearest
from headrace.observers.record import EVENTS, Log, Record
from headrace.observers.run_state import RunState
from headrace.options import RunOptions, variable, variable_of
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
        if options.watch:
            pages = annex("report.serving")
            shown += [pages.Watch(folder)] if pages is not None else []
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
