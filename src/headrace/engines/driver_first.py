"""The engine of a small job: this process begins it, and workers are started only if it is not done soon.

A worker imports what this process has imported already. With scikit-learn that takes a second, and predicting 50,000
rows a tenth of that. So the work begins here. After ``patience`` seconds workers are started beside it. Once one of
them can work, the attempt at hand ends where batches do, and all that is left goes to the workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Any

from headrace.core.engine_ports import Engine, EngineTraits, Pool, PoolSpec
from headrace.core.work import BlockRef, EndEarly, Pause
from headrace.engines.inline import InlinePool
from headrace.engines.local.process import WorkerProcess

Notify = Callable[[int, Any], None]
PATIENCE = 0.5
"""Seconds of computing in this process after which workers are started: about half of what starting them takes."""
_LOOK_EVERY = 0.02  # seconds


class DriverFirstEngine:
    """Pools of one stage whose first worker is this process; ``open_local`` opens the engine of the others."""

    traits = EngineTraits()

    def __init__(self, open_local: Callable[[], Engine], patience: float = PATIENCE) -> None:
        self._open_local = open_local
        self._patience = patience
        self._local: Engine | None = None
        self._opening = threading.Lock()
        self._pools: list[DriverFirstPool] = []

    def start(self, spec: PoolSpec, notify: Notify) -> Pool:
        """See ``Engine.start``."""
        pool = DriverFirstPool(spec, notify, partial(self._start_local, spec, notify), self._patience)
        self._pools.append(pool)
        return pool

    def _start_local(self, spec: PoolSpec, notify: Notify) -> Pool:
        with self._opening:
            self._local = self._local or self._open_local()
        return self._local.start(spec, notify)

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""
        if self._local is not None:
            self._local.hold(ref)

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        if self._local is not None:
            self._local.release(ref)

    def same_machine(self, worker: int, other: int) -> bool:
        """See ``Engine.same_machine``: there is one machine."""
        return True

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        for pool in self._pools:
            pool.close(kill=kill)
        if self._local is not None:
            self._local.close(kill=kill)


class DriverFirstPool(InlinePool):
    """One object in this process, until the pool that ``start_others`` starts after ``patience`` seconds can work."""

    def __init__(
        self, spec: PoolSpec, notify: Notify, start_others: Callable[[], Pool], patience: float
    ) -> None:
        super().__init__(spec, notify, {}, set(), WorkerProcess.next_number())
        self._start_others = start_others
        self._patience = patience
        self._pool: Pool | None = None  # of the others, once they can work
        self._waiting = False  # an attempt here has said something, and goes on once that was heard
        self._failure: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._hand_over, name="headrace-patience", daemon=True)
        self._thread.start()

    def _hand_over(self) -> None:
        """Start the others when it is time, and end what is done here once one of them can work."""
        began = time.process_time()  # where the machine is busy, starting workers takes longer, too
        while (left := self._patience - (time.process_time() - began)) > 0:
            if self._closed.wait(max(left, _LOOK_EVERY)):
                return
        try:
            others = self._start_others()
            while not _can_work(others):
                if self._closed.wait(_LOOK_EVERY):
                    return
            self._pool = others
        except Exception as error:  # the thread that drives the run raises it
            self._failure = error
        self._hosted.feed(-1, -1, EndEarly())

    @property
    def _others(self) -> Pool | None:
        if self._failure is not None:
            raise self._failure
        return self._pool

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``: this process, and then the others."""
        others = self._others
        return super().loads() if others is None or self._waiting else others.loads()

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``."""
        others = self._others
        if others is None or worker == self._number:
            answer = super().submit(method, *args, worker=worker)
            self._waiting = not answer.exception() and isinstance(answer.result(), Pause)
            return answer
        return others.submit(method, *args, worker=worker)

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        others = self._others
        if worker == self._number:
            super().feed(worker, *args)
        elif others is not None:
            others.feed(worker, *args)

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``."""
        if self._others is not None:
            self._others.resize(size, keep=keep)

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """See ``Pool.kill``: this process goes on."""
        if self._others is not None:
            self._others.kill(worker, reason, replace=replace)

    def dump(self) -> None:
        """See ``Pool.dump``."""
        if self._others is not None:
            self._others.dump()

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``: what the driver uses is measured apart."""
        return {} if self._others is None else self._others.memory()

    def close(self, *, kill: bool = False) -> None:
        """See ``Pool.close``; the engine of the others closes theirs."""
        self._closed.set()
        self._thread.join()
        if self._hosted is not None:
            super().close(kill=kill)


def _can_work(pool: Pool) -> bool:
    """Say whether a worker has imported what it needs; raises what the pool has failed with."""
    pool.loads()
    return any(not worker.preparing for worker in pool.workers())  # type: ignore[attr-defined]
