"""The pool that is this process: for debugging, and for a look at a few rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.core.door import completed
from headrace.core.engine_ports import EngineTraits, HostedParts, PoolSpec, WorkerContext
from headrace.core.process import importing
from headrace.core.work import BlockRef, BlocksFreed

if TYPE_CHECKING:
    import pyarrow as pa

_numbers = itertools.count(1)


class InlineEngine:
    """Pools of one worker that is the caller's own thread; a call is done when ``submit`` returns."""

    traits = EngineTraits(in_process=True)

    def __init__(self) -> None:
        self._pools: list[InlinePool] = []
        self._blocks: dict[int, list[pa.RecordBatch]] = {}
        self._kept: set[int] = set()

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> InlinePool:
        """See ``Engine.start``."""
        self._pools.append(InlinePool(spec, notify, self._blocks, self._kept))
        return self._pools[-1]

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""
        self._kept.add(ref.number)

    def same_machine(self, worker: int, other: int) -> bool:
        """See ``Engine.same_machine``: there is one machine."""
        return True

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        self._kept.discard(ref.number)
        self._blocks.pop(ref.number, None)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        for pool in self._pools:
            pool.close()


class InlineBlocks:
    """Blocks of workers that live in one process: ``batches`` has those of each, by number.

    ``notify`` gets ``BlocksFreed`` for those that were taken, from ``release_unused``; those in ``kept`` will be
    taken twice.
    """

    def __init__(
        self,
        batches: dict[int, list[pa.RecordBatch]],
        notify: Callable[[Any], None],
        kept: set[int] | None = None,
    ) -> None:
        self._batches = batches
        self._kept = kept if kept is not None else set()
        self._notify = notify
        self._taken: list[int] = []

    def context(self, worker: int, threads: int, notify: Callable[[Any], None]) -> WorkerContext:
        """Return the context of a worker."""
        return WorkerContext(
            worker, threads, notify, self.share, self.fetch, self.release_unused, lambda what: None, here=True
        )

    def share(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        """See ``WorkerContext``."""
        ref = BlockRef(0, 0, sum(batch.nbytes for batch in batches), next(_numbers))
        self._batches[ref.number] = list(batches)
        return ref

    def fetch(self, ref: BlockRef) -> list[pa.RecordBatch]:
        """See ``WorkerContext``."""
        if ref.number in self._kept:
            self._kept.discard(ref.number)
            return self._batches[ref.number]
        self._taken.append(ref.number)
        return self._batches.pop(ref.number)

    def release_unused(self) -> None:
        """See ``WorkerContext``."""
        if self._taken:
            self._notify(BlocksFreed(tuple(self._taken)))
            self._taken.clear()


class InlinePool:
    """One object, called directly, as that of worker ``number``."""

    def __init__(
        self,
        spec: PoolSpec,
        notify: Callable[[int, Any], None],
        blocks: dict[int, list[pa.RecordBatch]],
        kept: set[int],
        number: int = 0,
    ) -> None:
        self._number = number
        self._blocks = InlineBlocks(blocks, partial(notify, number), kept)
        context = self._blocks.context(number, spec.threads, partial(notify, number))
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
        self._blocks.release_unused()
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
