"""Worker processes on this machine, over inherited socket pairs: no daemon, no port, nothing to clean up.

Workers are fresh interpreters (no fork: the driver may hold threads and locks of native libraries). They start
before the driver imports what it needs for planning, so that both import at the same time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any

from millrace.core.ports import PoolSpec, WorkerContext
from millrace.engines import wire
from millrace.engines.listen import Listener
from millrace.engines.process import Worker
from millrace.errors import WorkerDied

Notify = Callable[[int, Any], None]

_BROKEN_AFTER = 3


class LocalEngine:
    """Pools of worker processes. ``warm`` workers with ``threads`` threads each are started at once."""

    def __init__(self, warm: int = 0, threads: int = 1) -> None:
        self._pools: list[LocalPool] = []
        self._threads = threads
        self._warm = [Worker(threads) for _ in range(warm)]

    def start(self, spec: PoolSpec, notify: Notify) -> LocalPool:
        """See ``Engine.start``. Warm workers with as many threads are taken first."""
        warm = self._warm[: spec.size] if spec.threads == self._threads else []
        pool = LocalPool(spec, notify, warm)  # if the factory cannot travel, they stay ours to end
        del self._warm[: len(warm)]
        self._pools.append(pool)
        return pool

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``; with ``kill``, workers are not asked to end."""
        for pool in self._pools:
            pool.close(kill=kill)
        for worker in self._warm:
            worker.end(kill=True)
        self._warm.clear()


class LocalPool:
    """A pool whose one thread listens to all workers, passes on what they print, and replaces the dead."""

    def __init__(self, spec: PoolSpec, notify: Notify, warm: list[Worker]) -> None:
        from millrace.engines.parcel import pack  # imports cloudpickle: after the first workers have started

        self._spec = spec
        self._notify = notify
        self._parcel = pack(spec.factory)
        self._lock = threading.RLock()
        self._workers: dict[int, Worker] = {}
        self._calls = iter(range(1 << 62))
        self._stillborn = 0
        self._broken: str | None = None
        self._closing = False
        self._size = spec.size
        self.stall_timeout = spec.stall_timeout
        for worker in warm:
            self._adopt(worker)
        self._listener = Listener(self)
        self.resize(spec.size)
        self._listener.start()

    # ------------------------------------------------------------ the port

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``."""
        with self._lock:
            if self._broken is not None:
                raise WorkerDied(self._broken)
            return {number: len(worker.calls) for number, worker in self._workers.items()}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``."""
        future: Future[Any] = Future()
        with self._lock:
            if self._broken is not None:
                raise WorkerDied(self._broken)
            if worker is None:
                worker = min(self._workers, key=lambda number: len(self._workers[number].calls))
            future.worker = worker  # type: ignore[attr-defined]
            chosen = self._workers.get(worker)
            if chosen is None:
                future.set_exception(WorkerDied(f"worker {worker} is gone"))
                return future
            number = next(self._calls)
            if not chosen.calls:
                chosen.heard = time.monotonic()
            chosen.calls[number] = future
        with contextlib.suppress(OSError):  # it is dead: the listener will say so to every call
            wire.send(chosen.sock, ("call", number, method, args))
        return future

    def resize(self, size: int) -> None:
        """See ``Pool.resize``."""
        with self._lock:
            self._size = size
            while len(self._workers) < size:
                self._adopt(Worker(self._spec.threads))
            self._listener.wake()
            idle = [worker for worker in self._workers.values() if not worker.calls]
            for worker in idle[: max(0, len(self._workers) - size)]:
                del self._workers[worker.number]
                worker.end(kill=False)

    def close(self, *, kill: bool = True) -> None:
        """See ``Pool.close``; without ``kill``, workers close what they host, except those still at a call."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._listener.stop()
        workers = list(self._workers.values())
        at_once = {worker.number: kill or bool(worker.calls) for worker in workers}
        for worker in workers:
            if not at_once[worker.number]:
                with contextlib.suppress(OSError):
                    wire.send(worker.sock, ("end",))
        for worker in workers:
            worker.end(kill=at_once[worker.number])
            _fail(worker, "the pool was closed")
        self._workers.clear()
        self._parcel.close()

    # ------------------------------------------------------------ what the listener calls

    def workers(self) -> list[Worker]:
        """The live workers."""
        with self._lock:
            return list(self._workers.values())

    def hear(self, worker: Worker, message: tuple[Any, ...]) -> None:
        """Take one message of a worker."""
        if message[0] == "note":
            self._notify(worker.number, message[1])
            return
        if message[0] == "ready":
            with self._lock:
                worker.ready = True
                self._stillborn = 0
            return
        kind, number, value = message
        with self._lock:
            future = worker.calls.pop(number, None)
        if future is None:
            return
        with contextlib.suppress(InvalidStateError):
            future.set_exception(value) if kind == "error" else future.set_result(value)

    def bury(self, worker: Worker) -> None:
        """A worker is gone: fail its calls, and put another in its place."""
        with self._lock:
            if self._closing or self._workers.pop(worker.number, None) is None:
                return
            worker.kill()
            reason = worker.way_of_death()
            worker.release()
            if not worker.ready:
                self._stillborn += 1
            if self._stillborn >= _BROKEN_AFTER:
                self._broken = (
                    f"{self._stillborn} workers in a row ended before they were ready, the last one so: "
                    f"{reason}. Something that is imported at their start takes the process down."
                )
            while self._broken is None and len(self._workers) < self._size:
                self._adopt(Worker(self._spec.threads))
        _fail(worker, reason)

    def give_up(self, reason: str) -> None:
        """Nothing more can come from this pool: fail every call, now and later."""
        with self._lock:
            self._broken = reason
            workers = list(self._workers.values())
        for worker in workers:
            _fail(worker, reason)

    def _adopt(self, worker: Worker) -> None:
        context = partial(WorkerContext, worker.number, self._spec.threads)
        self._workers[worker.number] = worker
        with contextlib.suppress(OSError):
            wire.send(
                worker.sock,
                ("host", context, self._parcel.pickled, self._parcel.places),
                self._parcel.fd,
            )


def _fail(worker: Worker, reason: str) -> None:
    for future in worker.calls.values():
        with contextlib.suppress(InvalidStateError):
            future.set_exception(WorkerDied(reason))
    worker.calls.clear()
