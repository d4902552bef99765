"""The workers of an executor: each is a pool of one, so that an actor's is its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.core.devices import Seat
from millrace.core.ports import PoolSpec
from millrace.executor.admission import Needs
from millrace.executor.ground import Ground, Worker
from millrace.executor.hosted import Hosted

IDLE = 5.0  # seconds after which idle workers are too many: on one machine, those beyond its cores
LOOK = 0.5


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes a worker fit for a call: threads, and the devices that it sees (None: whatever there is).

    ``needs``: what a cluster has to have room for, where that places workers.
    """

    threads: int
    devices: tuple[str, ...] | None = None
    needs: Needs | None = None


class Crew:
    """Starts workers, lends them to calls, and ends those that have had nothing to do."""

    def __init__(self, engine: Ground, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._idle: list[tuple[Kind, Worker, float]] = []  # the longest idle is the first

    @abstractmethod
    def kind(self, threads: int, seat: Seat, needs: Needs) -> Kind:
        """Return the kind of worker for a call that was given ``seat``."""

    def take(self, kind: Kind) -> Worker:
        """Return a worker that has nothing to do, a new one if need be."""
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i][0] == kind:
                return self._idle.pop(i)[1]
        self._make_room()
        return self.start("calls", kind)

    @abstractmethod
    def start(self, name: str, kind: Kind) -> Worker:
        """Start a worker."""

    def end(self, worker: Worker, *, kill: bool) -> None:
        """End a worker."""
        self._engine.end(worker, kill=kill)

    def give(self, kind: Kind, worker: Worker) -> None:
        """Take a worker back that has nothing to do."""
        self._idle.append((kind, worker, self._clock()))

    @abstractmethod
    def sweep(self) -> float | None:
        """End workers that are too many; return after how many seconds to do so again, if at all."""

    def close(self) -> None:
        """Forget the idle workers: the engine ends them."""
        self._idle.clear()

    @abstractmethod
    def _make_room(self) -> None:
        """A worker for a call is about to be started."""

    def _let_go(self, place: int = 0) -> None:
        self.end(self._idle.pop(place)[1], kill=False)

    def _spare(self, keep: int) -> float | None:
        """End who has long been idle as long as there are more than ``keep``."""
        while len(self._idle) > keep:
            left = IDLE - (self._clock() - self._idle[0][2])
            if left > 0:
                return left
            self._let_go()
        return None


class LocalCrew(Crew):
    """Of one machine: as many as its cores may stay, and who hands out its devices is the executor."""

    def __init__(self, engine: Ground, devices: Sequence[str], keep: int, clock: Callable[[], float]) -> None:
        super().__init__(engine, clock)
        self._devices = devices
        self._keep = keep

    def kind(self, threads: int, seat: Seat, needs: Needs) -> Kind:
        """See ``Crew``."""
        return Kind(threads, tuple(self._devices[i] for i in seat) if self._devices else None)

    def start(self, name: str, kind: Kind) -> Worker:
        """See ``Crew``."""
        if kind.devices:
            self._vacate(kind.devices)
        spec = PoolSpec(name, Hosted, 1, kind.threads, devices=kind.devices)
        worker: Worker = self._engine.start(spec, _nobody)
        return worker

    def sweep(self) -> float | None:
        """See ``Crew``."""
        return self._spare(self._keep)

    def _make_room(self) -> None:
        """Where there are as many idle workers as cores, the longest idle of another kind goes."""
        if len(self._idle) >= self._keep:
            self._let_go()

    def _vacate(self, devices: tuple[str, ...]) -> None:
        """Idle workers may hold memory of the devices that a new one is given."""
        for place in range(len(self._idle) - 1, -1, -1):
            if not set(devices).isdisjoint(self._idle[place][0].devices or ()):
                self._let_go(place)


class ClusterCrew(Crew):
    """Of a cluster, which places each worker by what it needs: idle ones hold what others may wait for.

    ``free`` says what nobody has who is at work; ``extra`` is what the engine is told of each worker besides.
    """

    def __init__(
        self, engine: Ground, free: Callable[[], Needs], extra: Mapping[str, Any], clock: Callable[[], float]
    ) -> None:
        super().__init__(engine, clock)
        self._free = free
        self._extra = extra
        self._waiting: list[Any] = []  # for a place

    def kind(self, threads: int, seat: Seat, needs: Needs) -> Kind:
        """See ``Crew``."""
        return Kind(threads, needs=needs)

    def start(self, name: str, kind: Kind) -> Worker:
        """See ``Crew``. Without ``num_cpus`` it takes no core, as Ray's own actors."""
        needs = kind.needs or Needs(0)
        spec = PoolSpec(
            name,
            Hosted,
            1,
            kind.threads,
            num_gpus=needs.num_gpus,
            memory=needs.memory or None,
            num_cpus=needs.num_cpus or None,
            extra=self._extra,
        )
        worker: Worker = self._engine.start(spec, _nobody)
        self._waiting.append(worker)
        return worker

    def give(self, kind: Kind, worker: Worker) -> None:
        """See ``Crew``. Nobody stays idle while others wait for a place."""
        super().give(kind, worker)
        self._yield_places()

    def sweep(self) -> float | None:
        """See ``Crew``."""
        return LOOK if self._yield_places() else self._spare(0)

    def _make_room(self) -> None:
        """Idle workers hold no more than what is free."""
        free = self._free()
        while self._idle:
            held = [kind.needs for kind, _, _ in self._idle if kind.needs is not None]
            if (
                sum(needs.num_cpus for needs in held) <= free.num_cpus
                and sum(needs.num_gpus for needs in held) <= free.num_gpus
                and sum(needs.memory for needs in held) <= free.memory
            ):
                return
            self._let_go()

    def _yield_places(self) -> bool:
        """Have all that are idle make room if anybody waits for a place; say whether somebody does."""
        self._waiting = [worker for worker in self._waiting if not worker.placed]
        while self._waiting and self._idle:
            self._let_go()
        return bool(self._waiting)


def _nobody(worker: int, message: Any) -> None:
    """Calls tell nothing but their results."""
