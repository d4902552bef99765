"""This process as a pool: for debugging, for a look at a few rows, and for small jobs until workers are ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Any

from headrace.core.door import completed
from headrace.core.engine_ports import Engine, EngineTraits, HostedParts, Pool, PoolSpec, WorkerContext
from headrace.core.messages import EndEarly
from headrace.core.process import importing
from headrace.core.work import BlockRef, Pause
from headrace.engines.local.process import WorkerProcess

Notify = Callable[[int, Any], None]


class InlineEngine:
    """Pools of one worker that is the caller's own thread; a call is done when ``submit`` returns.

    A plan has one stage here, so there are no blocks.
    """

    traits = EngineTraits(in_process=True)

    def __init__(self) -> None:
        self._pools: list[InlinePool] = []

    def start(self, spec: PoolSpec, notify: Notify) -> InlinePool:
        """See ``Engine.start``."""
        self._pools.append(InlinePool(spec, notify))
        return self._pools[-1]

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""

    def machine(self, worker: int) -> str:
        """See ``Engine.machine``: there is one."""
        return ""

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        for pool in self._pools:
            pool.close(kill=kill)


class InlinePool:
    """One object, called directly, as that of worker ``number``."""

    def __init__(self, spec: PoolSpec, notify: Notify, number: int = 0) -> None:
        self._number = number
        context = WorkerContext(
            number,
            spec.threads,
            partial(notify, number),
            _no_blocks,
            _no_blocks,
            lambda: None,
            lambda what: None,
            here=True,
        )
        with importing():  # what a worker needs
            self._hosted: Any = spec.factory(context)

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        self._hosted.feed(*args)

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``: the one worker is always free."""
        return {self._number: 0}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``."""
        future: Future[Any] = Future()
        future.worker = self._number  # type: ignore[attr-defined]
        try:
            result = getattr(self._hosted, method)(*args)
            future.set_result(result.result() if isinstance(result, Future) else result)
        except Exception as error:
            future.set_exception(error)
        return future

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``: there is one worker, always."""

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """See ``Pool.kill``: the one worker is this process, and goes on."""

    def dump(self) -> None:
        """See ``Pool.dump``: the caller is the one worker."""

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``: all of it is the caller's."""
        return {}

    def close(self, *, kill: bool = False) -> None:
        """See ``Pool.close``."""
        completed(self._hosted, HostedParts).close()
        self._hosted = None


def _no_blocks(*what: Any) -> Any:
    raise NotImplementedError("a plan has one stage here")


# ---------------------------------------------------------------- small jobs

PATIENCE = 0.5
"""Seconds of computing in this process after which workers are started: about half of what starting them takes."""
_LOOK_EVERY = 0.02  # seconds


class DriverFirstEngine(InlineEngine):
    """Pools of one stage whose first worker is this process; ``open_local`` opens the engine of the others.

    A worker imports what this process has imported already. With scikit-learn that takes a second, and predicting
    50,000 rows a tenth of that. So the work begins here. After ``patience`` seconds workers are started beside it.
    Once one of them can work, the attempt at hand ends where batches do, and all that is left goes to the workers.
    """

    traits = EngineTraits()

    def __init__(self, open_local: Callable[[], Engine], patience: float = PATIENCE) -> None:
        super().__init__()
        self._open_local = open_local
        self._patience = patience
        self._local: Engine | None = None
        self._opening = threading.Lock()

    def start(self, spec: PoolSpec, notify: Notify) -> InlinePool:
        """See ``Engine.start``."""
        pool = DriverFirstPool(spec, notify, partial(self._start_local, spec, notify), self._patience)
        self._pools.append(pool)
        return pool

    def _start_local(self, spec: PoolSpec, notify: Notify) -> Pool:
        with self._opening:
            self._local = self._local or self._open_local()
        return self._local.start(spec, notify)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        super().close(kill=kill)
        if self._local is not None:
            self._local.close(kill=kill)


class DriverFirstPool(InlinePool):
    """One object in this process, until the pool that ``start_others`` starts after ``patience`` seconds can work."""

    def __init__(
        self, spec: PoolSpec, notify: Notify, start_others: Callable[[], Pool], patience: float
    ) -> None:
        super().__init__(spec, notify, WorkerProcess.next_number())
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
