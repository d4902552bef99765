"""How many workers each pool should have, between its bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.core.events import PoolResized, RunAsked, WorkerRetired
from headrace.core.work import RestLeft
from headrace.driver.policy import Action, Emit, Policy, ResizePool, Restrict, RunView

GROW_AFTER = 0.5  # seconds in which all workers were busy and work was waiting
SHRINK_AFTER = 5.0  # seconds in which some worker had nothing to do


class Autoscaler:
    """Lets a pool grow while work waits for it, and shrink while workers are idle.

    A pool doubles at a time, since work that waits has to be done; it loses one worker at a time, since a worker may
    be idle for a moment only.

    >>> pool = Autoscaler(1, 8)
    >>> [pool.wanted({1: 2}, waiting=9, now=now) for now in (0.0, 0.4, 0.5)]
    [1, 1, 2]
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._size = least
        self._busy_since: float | None = None  # all workers are busy and work waits
        self._idle_since: float | None = None  # some worker has nothing to do
        self._certain = False  # what waits is worth another worker

    @property
    def size(self) -> int:
        """The number of workers that there should be now."""
        return self._size

    def remove_worker(self) -> None:
        """Lower the size by one worker; it does not grow beyond that again."""
        self._most = self._size = max(1, self._size - 1)
        self._least = min(self._least, self._most)

    def limit(self, most: int) -> None:
        """Have so many workers at most; and at least, where their number was fixed."""
        self._least = most if self._least == self._most else min(self._least, most)
        self._most = most
        self._size = min(max(self._size, self._least), most)

    def expect_work(self) -> None:
        """Grow at once if work waits: somebody has measured that it is worth another worker."""
        self._certain = True

    def wanted(self, loads: Mapping[int, int], *, waiting: int, now: float) -> int:
        """Return how many workers there should be; ``loads`` counts each one's calls, ``waiting`` tasks."""
        busy = bool(loads) and all(loads.values())
        certain, self._certain = self._certain, False
        if not (busy and waiting):
            self._busy_since = None
        elif self._busy_since is None and not certain:
            self._busy_since = now
        elif self._size < self._most and (
            self._busy_since is None or certain or now - self._busy_since >= GROW_AFTER
        ):
            self._size = min(self._most, self._size + min(self._size, waiting))
            self._busy_since = now
        if busy or waiting:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= SHRINK_AFTER and self._size > self._least:
            self._size -= 1
            self._idle_since = now
        return self._size


class PoolScaling(Policy):
    """Lets the pools of stages grow and shrink; ``bounds`` has the least and most workers of each stage.

    The stages in ``sized`` get another number of workers when that is asked for. Workers that are too many get
    nothing more to do, and end once they have done what they are at.
    """

    def __init__(self, bounds: Sequence[tuple[int, int]], sized: Sequence[int] = ()) -> None:
        self._last = len(bounds) - 1
        self._sized = sized
        self._scalers = {
            stage: Autoscaler(least, most)
            for stage, (least, most) in enumerate(bounds)
            if least < most or stage in sized
        }
        self._sizes = {stage: scaler.size for stage, scaler in self._scalers.items()}  # of the pools
        self._shrinks: set[int] = set()  # stages in which there are more workers than were asked for

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Give nothing more to workers that are too many."""
        for stage in sorted(self._shrinks):
            size = self._scalers[stage].size
            if surplus := sorted(view.loads(stage))[size:]:
                yield Restrict(ending=frozenset(surplus))
                yield ResizePool(stage, size)
            else:
                self._shrinks.discard(stage)

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """Resize the pools that should have another size."""
        for stage, scaler in self._scalers.items():
            waiting = 1 if view.holds else view.tasks_waiting(stage)  # a pause is no reason to shrink
            size = scaler.wanted({} if view.holds else view.loads(stage), waiting=waiting, now=view.now)
            if size != self._sizes[stage]:
                self._sizes[stage] = size
                yield ResizePool(stage, size)
                yield Emit(PoolResized(stage, size))

    def on_message(self, message: Any, now: float) -> None:
        """Count a worker that was ended for its memory and is not replaced; note work that was left for another."""
        if isinstance(message, WorkerRetired) and not message.replaced and message.stage in self._scalers:
            self._scalers[message.stage].remove_worker()
            self._sizes[message.stage] = self._scalers[message.stage].size
        elif isinstance(message, RunAsked) and message.workers is not None:
            for stage in self._sized:
                self._scalers[stage].limit(message.workers)
                self._shrinks.add(stage)
        elif isinstance(message, RestLeft) and self._last in self._scalers:
            self._scalers[self._last].expect_work()
