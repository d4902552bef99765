"""The worker processes of an executor: each is a pool of one, so that an actor's is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.core.devices import Seat
from millrace.core.ports import PoolSpec
from millrace.engines.local import LocalEngine, LocalPool
from millrace.executor.hosted import Hosted

IDLE = 5.0  # seconds after which more idle workers than cores are too many


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes a worker fit for a call: threads, and the devices that it sees (None: whatever there is)."""

    threads: int
    devices: tuple[str, ...] | None


class Crew:
    """Starts workers, lends them to calls, and ends those that have had nothing to do."""

    def __init__(
        self, engine: LocalEngine, devices: Sequence[str], keep: int, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._devices = devices
        self._keep = keep
        self._clock = clock
        self._idle: list[tuple[Kind, LocalPool, float]] = []  # the longest idle is the first

    def kind(self, threads: int, seat: Seat) -> Kind:
        """Return the kind of worker for a call that was given ``seat``."""
        return Kind(threads, tuple(self._devices[i] for i in seat) if self._devices else None)

    def take(self, kind: Kind) -> LocalPool:
        """Return a worker that has nothing to do, a new one if need be."""
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i][0] == kind:
                return self._idle.pop(i)[1]
        self._make_room(kind)
        return self.start("calls", kind)

    def start(self, name: str, kind: Kind) -> LocalPool:
        """Start a worker."""
        if kind.devices:
            self._vacate(kind.devices)
        spec = PoolSpec(name, Hosted, 1, kind.threads, devices=kind.devices)
        return self._engine.start(spec, _nobody)

    def give(self, kind: Kind, worker: LocalPool) -> None:
        """Take a worker back that has nothing to do."""
        self._idle.append((kind, worker, self._clock()))

    def sweep(self) -> float | None:
        """End workers that are too many; return after how many seconds to do so again, if at all."""
        while len(self._idle) > self._keep:
            left = IDLE - (self._clock() - self._idle[0][2])
            if left > 0:
                return left
            self._idle.pop(0)[1].close(kill=False)
        return None

    def close(self) -> None:
        """Forget the idle workers: the engine ends them."""
        self._idle.clear()

    def _make_room(self, kind: Kind) -> None:
        """Where there are as many idle workers as cores, the longest idle of another kind goes."""
        if len(self._idle) >= self._keep:
            self._idle.pop(0)[1].close(kill=False)

    def _vacate(self, devices: tuple[str, ...]) -> None:
        """Idle workers may hold memory of the devices that a new one is given."""
        for entry in list(self._idle):
            if not set(devices).isdisjoint(entry[0].devices or ()):
                self._idle.remove(entry)
                entry[1].close(kill=False)


def _nobody(worker: int, message: Any) -> None:
    """Calls tell nothing but their results."""
