"""The workers of an executor: each is a pool of one, so that an actor's is its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.core.devices import Seat
from headrace.core.engine_ports import PoolSpec
from headrace.tasks.admission import Needs
from headrace.tasks.calls import TaskWorker
from headrace.tasks.hosting.task_host import TaskHost

if TYPE_CHECKING:
    from headrace.engines.object_store import ObjectStore

MAX_IDLE = 5.0  # seconds after which idle workers are too many: on one machine, those beyond its cores
CHECK_EVERY = 0.5


class ExecutorEngine(Protocol):
    """See ``LocalEngine`` and ``RayEngine``."""

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> Any:
        """See ``Engine.start``."""
        ...

    def end(self, pool: Any, *, kill: bool) -> None:
        """Close a pool; it may take a while until that has happened."""
        ...

    def object_store(self, on_release: Callable[[int, set[int]], None]) -> ObjectStore:
        """Return a store for values; ``on_release`` gets the number of one that nobody refers to, and who has it."""
        ...

    def forget(self, number: int, workers: Collection[int]) -> None:
        """Have workers forget a value that is not needed any more."""
        ...

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """What makes a worker fit for a call: threads, and the devices that it sees (None: whatever there is).

    ``needs``: what a cluster has to have room for, where that places workers.
    """

    threads: int
    devices: tuple[str, ...] | None = None
    needs: Needs | None = None


class ExecutorWorkers:
    """Starts workers, assigns them to calls, and ends those that have been idle."""

    def __init__(self, engine: ExecutorEngine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._idle: list[tuple[WorkerKind, TaskWorker, float]] = []  # the longest idle is the first
        self.line: Callable[[], Any] | None = None  # what a worker asks of the driver

    @abstractmethod
    def kind(self, threads: int, seat: Seat, needs: Needs) -> WorkerKind:
        """Return the kind of worker for a call that has ``seat``."""

    def acquire(self, kind: WorkerKind) -> TaskWorker:
        """Return an idle worker, or a new one."""
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i][0] == kind:
                return self._idle.pop(i)[1]
        self._before_start()
        return self.start("calls", kind)

    @abstractmethod
    def start(self, name: str, kind: WorkerKind) -> TaskWorker:
        """Start a worker."""

    def end(self, worker: TaskWorker, *, kill: bool) -> None:
        """End a worker."""
        self._engine.end(worker, kill=kill)

    def release(self, kind: WorkerKind, worker: TaskWorker) -> None:
        """A worker is idle again."""
        self._idle.append((kind, worker, self._clock()))

    @abstractmethod
    def end_surplus(self) -> float | None:
        """End idle workers that are too many; return in how many seconds to do so again, if at all."""

    def close(self) -> None:
        """Forget the idle workers: the engine ends them."""
        self._idle.clear()

    @abstractmethod
    def _before_start(self) -> None:
        """A worker for a call is about to be started."""

    def _end_idle(self, place: int = 0) -> None:
        self.end(self._idle.pop(place)[1], kill=False)

    def _end_long_idle(self, most: int) -> float | None:
        """End workers that have long been idle as long as there are more than ``most``."""
        while len(self._idle) > most:
            left = MAX_IDLE - (self._clock() - self._idle[0][2])
            if left > 0:
                return left
            self._end_idle()
        return None


class LocalWorkers(ExecutorWorkers):
    """Of one machine: as many as its cores may stay idle. Which devices each sees is up to the executor."""

    def __init__(
        self, engine: ExecutorEngine, devices: Sequence[str], most: int, clock: Callable[[], float]
    ) -> None:
        super().__init__(engine, clock)
        self._devices = devices
        self._most = most

    def kind(self, threads: int, seat: Seat, needs: Needs) -> WorkerKind:
        """See ``ExecutorWorkers``."""
        return WorkerKind(threads, tuple(self._devices[i] for i in seat) if self._devices else None)

    def start(self, name: str, kind: WorkerKind) -> TaskWorker:
        """See ``ExecutorWorkers``."""
        if kind.devices:
            self._vacate(kind.devices)
        assert self.line is not None
        line = self.line()
        spec = PoolSpec(
            name,
            TaskHost,
            1,
            kind.threads,
            devices=kind.devices,
            on_packed=line.on_packed,
            on_end=line.on_end,
        )
        line.pool = worker = self._engine.start(spec, line.on_note)
        return worker  # type: ignore[no-any-return]

    def end_surplus(self) -> float | None:
        """See ``ExecutorWorkers``."""
        return self._end_long_idle(self._most)

    def _before_start(self) -> None:
        """Where there are as many idle workers as cores, end the one that was idle longest."""
        if len(self._idle) >= self._most:
            self._end_idle()

    def _vacate(self, devices: tuple[str, ...]) -> None:
        """End idle workers that may hold memory of the devices of a new one."""
        for place in range(len(self._idle) - 1, -1, -1):
            if not set(devices).isdisjoint(self._idle[place][0].devices or ()):
                self._end_idle(place)


class ClusterWorkers(ExecutorWorkers):
    """Of a cluster, which places each worker by what it needs: idle ones hold what others may wait for.

    ``free`` returns what workers with calls do not hold; ``extra`` are more options of the engine for each worker.
    """

    def __init__(
        self,
        engine: ExecutorEngine,
        free: Callable[[], Needs],
        extra: Mapping[str, Any],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(engine, clock)
        self._free = free
        self._extra = extra
        self._waiting: list[Any] = []  # for a place

    def kind(self, threads: int, seat: Seat, needs: Needs) -> WorkerKind:
        """See ``ExecutorWorkers``."""
        return WorkerKind(threads, needs=needs)

    def start(self, name: str, kind: WorkerKind) -> TaskWorker:
        """See ``ExecutorWorkers``. Without ``num_cpus`` it takes no core, like Ray's own actors."""
        needs = kind.needs or Needs(0)
        spec = PoolSpec(
            name,
            TaskHost,
            1,
            kind.threads,
            num_gpus=needs.num_gpus,
            memory=needs.memory or None,
            num_cpus=needs.num_cpus or None,
            extra=self._extra,
        )
        worker: TaskWorker = self._engine.start(spec, _ignore)
        self._waiting.append(worker)
        return worker

    def release(self, kind: WorkerKind, worker: TaskWorker) -> None:
        """See ``ExecutorWorkers``. No worker stays idle while others wait for a place."""
        super().release(kind, worker)
        self._end_idle_for_waiting()

    def end_surplus(self) -> float | None:
        """See ``ExecutorWorkers``."""
        return CHECK_EVERY if self._end_idle_for_waiting() else self._end_long_idle(0)

    def _before_start(self) -> None:
        """End idle workers until the others hold no more than what is free."""
        free = self._free()
        while self._idle:
            held = [kind.needs for kind, _, _ in self._idle if kind.needs is not None]
            if (
                sum(needs.num_cpus for needs in held) <= free.num_cpus
                and sum(needs.num_gpus for needs in held) <= free.num_gpus
                and sum(needs.memory for needs in held) <= free.memory
            ):
                return
            self._end_idle()

    def _end_idle_for_waiting(self) -> bool:
        """End all idle workers if another waits for a place; say whether one does."""
        self._waiting = [worker for worker in self._waiting if not worker.placed]
        while self._waiting and self._idle:
            self._end_idle()
        return bool(self._waiting)


def _ignore(worker: int, message: Any) -> None:
    """Calls send nothing but their results."""
