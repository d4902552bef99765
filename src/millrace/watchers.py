"""Who watches a run: the observers that the options ask for. One that raises is logged and dropped."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from millrace.core.events import CallRetried, Event, ShardDivided, WorkerRetired
from millrace.core.ports import Observer
from millrace.observers.ceilings import Ceilings
from millrace.observers.sizes import Sizes
from millrace.options import RunOptions

_log = logging.getLogger("millrace")


class Watchers:
    """Hands every event to every observer, and remembers what the last words of a run need."""

    def __init__(self, watchers: list[Observer]) -> None:
        self._watchers = watchers
        self._ceilings = Ceilings()
        self._sizes = Sizes()
        self._retried: Counter[tuple[str, str]] = Counter()
        self._retired = self._divided = 0

    @classmethod
    def of(cls, options: RunOptions) -> Watchers:
        """Return the observers for these options."""
        if options.progress is False:
            return cls([])
        from millrace.observers.progress import Progress

        return cls([Progress()])

    def add(self, watcher: Observer) -> None:
        """Have one more watch."""
        self._watchers.append(watcher)

    def on_event(self, event: Event) -> None:
        """Tell everybody."""
        self._ceilings.add(event)
        self._sizes.add(event)
        if isinstance(event, CallRetried):
            self._retried[event.step, event.error] += 1
        self._retired += isinstance(event, WorkerRetired)
        self._divided += isinstance(event, ShardDivided)
        for watcher in list(self._watchers):
            try:
                watcher.on_event(event)
            except Exception:
                self._drop(watcher)

    def findings(self) -> dict[str, Any]:
        """Return what the events told, by the names that ``RunFinished`` has for it."""
        return {
            "ceilings": self._ceilings.settled(),
            "retried": tuple((step, error, count) for (step, error), count in self._retried.most_common()),
            "retired": self._retired,
            "divided": self._divided,
            "batches": self._sizes.settled(),
        }

    def tick(self) -> None:
        """Let those who draw draw; called about five times a second."""
        for watcher in list(self._watchers):
            try:
                watcher.tick()
            except Exception:
                self._drop(watcher)

    def close(self) -> None:
        """The run is over."""
        for watcher in list(self._watchers):
            try:
                watcher.close()
            except Exception:
                self._drop(watcher)

    def _drop(self, watcher: Observer) -> None:
        _log.exception("The observer %s failed and is dropped; the run goes on.", type(watcher).__name__)
        self._watchers.remove(watcher)
