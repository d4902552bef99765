"""The pool that is this process: for debugging, and for a look at a few rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from millrace.core.ports import PoolSpec, WorkerContext
from millrace.core.work import BlockRef, Freed

if TYPE_CHECKING:
    import pyarrow as pa

_numbers = itertools.count(1)


class InlineEngine:
    """Pools of one worker that is the caller's own thread; a call is done when ``submit`` returns."""

    def __init__(self) -> None:
        self._pools: list[InlinePool] = []
        self._blocks: dict[int, list[pa.RecordBatch]] = {}

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> InlinePool:
        """See ``Engine.start``."""
        self._pools.append(InlinePool(spec, notify, self._blocks))
        return self._pools[-1]

    def drop(self, ref: BlockRef) -> None:
        """See ``Engine.drop``."""
        self._blocks.pop(ref.number, None)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        for pool in self._pools:
            pool.close()


class InlinePool:
    """One object, called directly."""

    def __init__(
        self,
        spec: PoolSpec,
        notify: Callable[[int, Any], None],
        blocks: dict[int, list[pa.RecordBatch]],
    ) -> None:
        self._blocks = blocks
        self._notify = notify
        self._taken: list[int] = []
        context = WorkerContext(
            0, spec.threads, lambda message: notify(0, message), self._share, self._take, self._tidy
        )
        self._hosted: Any = spec.factory(context)

    def _share(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        ref = BlockRef(0, 0, sum(batch.nbytes for batch in batches), next(_numbers))
        self._blocks[ref.number] = list(batches)
        return ref

    def _take(self, ref: BlockRef) -> list[pa.RecordBatch]:
        self._taken.append(ref.number)
        return self._blocks.pop(ref.number)

    def _tidy(self) -> None:
        if self._taken:
            self._notify(0, Freed(tuple(self._taken)))
            self._taken.clear()

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        self._hosted.feed(*args)

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
        self._tidy()
        return future

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``: there is one worker, always."""

    def close(self, *, kill: bool = False) -> None:
        """See ``Pool.close``."""
        close = getattr(self._hosted, "close", None)
        if close is not None:
            close()
        self._hosted = None
