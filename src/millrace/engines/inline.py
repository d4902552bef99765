"""The pool that is this process: for debugging, and for a look at a few rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from millrace.core.ports import PoolSpec, WorkerContext


class InlineEngine:
    """Pools of one worker that is the caller's own thread; a call is done when ``submit`` returns."""

    def __init__(self) -> None:
        self._pools: list[InlinePool] = []

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> InlinePool:
        """See ``Engine.start``."""
        self._pools.append(InlinePool(spec, notify))
        return self._pools[-1]

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        for pool in self._pools:
            pool.close()


class InlinePool:
    """One object, called directly."""

    def __init__(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> None:
        context = WorkerContext(0, spec.threads, lambda message: notify(0, message))
        self._hosted: Any = spec.factory(context)

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``: the one worker is always free."""
        return {0: 0}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``."""
        future: Future[Any] = Future()
        future.worker = 0  # type: ignore[attr-defined]
        try:
            result = getattr(self._hosted, method)(*args)
            future.set_result(result.result() if isinstance(result, Future) else result)
        except Exception as error:
            future.set_exception(error)
        return future

    def resize(self, size: int) -> None:
        """See ``Pool.resize``: there is one worker, always."""

    def close(self, *, kill: bool = False) -> None:
        """See ``Pool.close``."""
        close = getattr(self._hosted, "close", None)
        if close is not None:
            close()
        self._hosted = None
