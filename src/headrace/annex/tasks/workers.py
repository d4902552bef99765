"""Workers that run calls: which are idle, and which is fit for a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.core.engine_ports import PoolSpec, Seat

if TYPE_CHECKING:
    from headrace.engines.local.pool import LocalEngine, LocalPool


MAX_IDLE = 5.0  # seconds after which idle workers beyond the machine's cores end


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """What makes a worker fit for a call: threads, and the devices that it sees (None: whatever there is)."""

    threads: int
    devices: tuple[str, ...] | None = None


class ExecutorWorkers:
    """Starts workers, assigns them to calls, and ends idle ones beyond ``most``.

    ``devices``: those of the executor, which decides what each worker sees.
    """

    def __init__(
        self, engine: LocalEngine, devices: Sequence[str], most: int, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._devices = devices
        self._most = most
        self._clock = clock
        self._idle: list[tuple[WorkerKind, LocalPool, float]] = []  # the longest idle is the first
        self.line: Callable[[], Any]  # what a worker asks of the driver; set before the first call

    def kind(self, threads: int, seat: Seat) -> WorkerKind:
        """Return the kind of worker for a call that has ``seat``."""
        return WorkerKind(threads, tuple(self._devices[i] for i in seat) if self._devices else None)

    def acquire(self, kind: WorkerKind) -> LocalPool:
        """Return an idle worker, or a new one."""
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i][0] == kind:
                return self._idle.pop(i)[1]
        if len(self._idle) >= self._most:
            self._end_idle()
        return self.start("calls", kind)

    def start(self, name: str, kind: WorkerKind) -> LocalPool:
        """Start a worker. Idle ones that may hold memory of its devices end."""
        for place in range(len(self._idle) - 1, -1, -1):
            if set(self._idle[place][0].devices or ()) & set(kind.devices or ()):
                self._end_idle(place)
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
        worker = line.pool = self._engine.start(spec, line.on_note)
        return worker

    def end(self, worker: LocalPool, *, kill: bool) -> None:
        """End a worker."""
        worker.close(kill=kill)

    def release(self, kind: WorkerKind, worker: LocalPool) -> None:
        """A worker is idle again."""
        self._idle.append((kind, worker, self._clock()))

    def end_surplus(self) -> float | None:
        """End idle workers that are too many; return in how many seconds to do so again, if at all."""
        while len(self._idle) > self._most:
            left = MAX_IDLE - (self._clock() - self._idle[0][2])
            if left > 0:
                return left
            self._end_idle()
        return None

    def close(self) -> None:
        """Forget the idle workers: the engine ends them."""
        self._idle.clear()

    def _end_idle(self, place: int = 0) -> None:
        self.end(self._idle.pop(place)[1], kill=False)
