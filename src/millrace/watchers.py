"""Who watches a run: the observers that the options ask for. One that raises is logged and dropped."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

from millrace.core.events import CallRetried, Event, ShardDivided, WorkerRetired
from millrace.observers.busy import Busy
from millrace.observers.ceilings import Ceilings
from millrace.observers.record import Record
from millrace.observers.sizes import Sizes
from millrace.options import RunOptions

EVENTS = "events.jsonl"
"""The record of a run, in its folder."""

_log = logging.getLogger("millrace")


class Watchers:
    """Hands every event to every observer, and remembers what the last words of a run need."""

    def __init__(self, watchers: list[Any]) -> None:
        """``watchers`` have ``on_event``, and may have ``tick`` and ``close``; see ``core.ports.Observer``."""
        self._watchers = watchers
        self._ceilings = Ceilings()
        self._sizes = Sizes()
        self._busy = Busy()
        self._retried: Counter[tuple[str, str]] = Counter()
        self._retired = self._divided = 0

    @classmethod
    def of(cls, options: RunOptions, folder: Path | None = None) -> Watchers:
        """Return the observers for these options; the record is kept in ``folder``, that of the run."""
        watchers: list[Any] = [Record(folder / EVENTS)] if folder is not None else []
        if options.log is not None:
            watchers.append(Record(Path(options.log), ours=False))
        if options.metrics_port is not None:
            from millrace.observers.prometheus import serving

            watchers += serving(options.metrics_port)
        if options.progress is not False:
            from millrace.observers.progress import Progress

            watchers.append(Progress())
        return cls([*watchers, *options.observers])

    def add(self, watcher: Any) -> None:
        """Have one more watch."""
        self._watchers.append(watcher)

    def on_event(self, event: Event) -> None:
        """Tell everybody."""
        self._ceilings.add(event)
        self._sizes.add(event)
        self._busy.add(event, time.monotonic())
        if isinstance(event, CallRetried):
            self._retried[event.step, event.error] += 1
        self._retired += isinstance(event, WorkerRetired)
        self._divided += isinstance(event, ShardDivided) and not event.early
        for watcher in list(self._watchers):
            try:
                watcher.on_event(event)
            except Exception as error:
                self._drop(watcher, error)

    def findings(self, seconds: float) -> dict[str, Any]:
        """Return what the events of so many seconds told, by the names that ``RunFinished`` has for it."""
        return {
            "stages": self._busy.uses(seconds),
            "ceilings": self._ceilings.settled(),
            "retried": tuple((step, error, count) for (step, error), count in self._retried.most_common()),
            "retired": self._retired,
            "divided": self._divided,
            "batches": self._sizes.settled(),
        }

    def tick(self) -> None:
        """Let those who draw draw; called about five times a second."""
        self._each("tick")

    def close(self) -> None:
        """The run is over."""
        self._each("close")

    def _each(self, method: str) -> None:
        for watcher in list(self._watchers):
            try:
                getattr(watcher, method, _nothing)()
            except Exception as error:
                self._drop(watcher, error)

    def _drop(self, watcher: Any, error: Exception) -> None:
        name = type(watcher).__name__
        if isinstance(watcher, Record) and isinstance(
            error, OSError | ValueError
        ):  # a full disk is no defect
            reason = getattr(error, "strerror", None) or error
            _log.warning("The record %s cannot be written, and is left out: %s.", watcher.path, reason)
        else:
            _log.exception("The observer %s failed and is dropped; the run goes on.", name)
        self._watchers = [each for each in self._watchers if each is not watcher]


def _nothing() -> None:
    """What an observer does not have, it does not do."""
