"""Stand-ins that do in one process, and in a fixed order, what the real things do in many."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.core import failpoints as points
from headrace.core.door import completed
from headrace.core.engine_ports import HostedParts, PoolSpec, WorkerContext
from headrace.core.messages import BlocksFreed
from headrace.core.work import BlockRef, Task
from headrace.errors import WorkerDied

if TYPE_CHECKING:
    import pyarrow as pa


Notify = Callable[[int, Any], None]
Fault = str | Exception
Faults = Mapping[tuple[int, int], Fault]
_numbers = itertools.count(1)


@contextlib.contextmanager
def failpoints(faults: Mapping[str, str]) -> Iterator[None]:
    """Make ``faults`` (point → action, see ``headrace.core.failpoints``) active inside the ``with`` block.

    >>> from headrace.core.failpoints import active
    >>> with failpoints({"journal.sync": "EIO@2"}):
    ...     active()
    {'journal.sync': 'EIO@2'}
    >>> active()
    {}
    """
    before = points.active()
    points.activate(faults)
    try:
        yield
    finally:
        points.activate(before)


class FakeClock:
    """A clock that stands still until it is told to go on; call it for the time in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.now += seconds


class FakeEngine:
    """An engine whose workers are plain objects of this process, and fail as ``faults`` says.

    ``faults`` maps (shard, attempt) to what becomes of that attempt: ``"die"`` ends its worker before the
    attempt, ``"die after"`` when it is done but nobody knows, an exception is the call's own. ``calls`` notes
    what was asked of whom: (worker, method, shard).
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = dict(faults or {})
        self.calls: list[tuple[int, str, int | None]] = []
        self.pools: list[FakePool] = []
        self._blocks: dict[int, list[pa.RecordBatch]] = {}
        self._kept: set[int] = set()

    def start(self, spec: PoolSpec, notify: Notify) -> FakePool:
        """See ``Engine.start``."""
        self.pools.append(FakePool(spec, notify, self.faults, self.calls, self._blocks, self._kept))
        return self.pools[-1]

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""
        self._kept.add(ref.number)

    def machine(self, worker: int) -> str:
        """See ``Engine.machine``: there is one."""
        return ""

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        self._kept.discard(ref.number)
        self._blocks.pop(ref.number, None)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        for pool in self.pools:
            pool.close()


class _Blocks:
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


class FakePool:
    """A pool of ``spec.size`` objects; a call is done when ``submit`` returns."""

    def __init__(
        self,
        spec: PoolSpec,
        notify: Notify,
        faults: Faults | None = None,
        calls: list[tuple[int, str, int | None]] | None = None,
        blocks: dict[int, list[pa.RecordBatch]] | None = None,
        kept: set[int] | None = None,
    ) -> None:
        self._spec = spec
        self._notify = notify
        self._faults = faults or {}
        self._calls = calls if calls is not None else []
        self._hosted: dict[int, Any] = {}
        self._blocks = _Blocks(blocks if blocks is not None else {}, partial(notify, -1), kept)
        self._hired = 0
        self.resize(spec.size)

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``: nobody is ever busy."""
        return dict.fromkeys(self._hosted, 0)

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``."""
        if worker is None and self._hosted:
            worker = min(self._hosted)
        future: Future[Any] = Future()
        future.worker = worker  # type: ignore[attr-defined]
        task = args[0] if args and isinstance(args[0], Task) else None
        self._calls.append((-1 if worker is None else worker, method, task.shard.index if task else None))
        fault = self._faults.get((task.shard.index, task.attempt)) if task else None
        if worker not in self._hosted:
            future.set_exception(WorkerDied(f"worker {worker} is gone"))
        elif fault == "die":
            self._remove_dead(worker, future)
        elif isinstance(fault, Exception):
            future.set_exception(fault)
        else:
            try:
                result = getattr(self._hosted[worker], method)(*args)
                result = result.result() if isinstance(result, Future) else result
                self._blocks.release_unused()
            except Exception as error:
                future.set_exception(error)
            else:
                if fault == "die after":
                    self._remove_dead(worker, future)
                else:
                    future.set_result(result)
        return future

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        if worker in self._hosted:
            self._hosted[worker].feed(*args)

    def _remove_dead(self, worker: int, future: Future[Any]) -> None:
        del self._hosted[worker]
        self.resize(self._spec.size)
        future.set_exception(WorkerDied(f"worker {worker} died as the test asked"))

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``."""
        while len(self._hosted) < size:
            number, self._hired = self._hired, self._hired + 1
            context = self._blocks.context(number, self._spec.threads, partial(self._notify, number))
            self._hosted[number] = self._spec.factory(context)
        while len(self._hosted) > size:
            self._end(max(self._hosted))

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """See ``Pool.kill``: its calls are done already, so nobody misses it."""
        if worker in self._hosted:
            size = len(self._hosted)
            del self._hosted[worker]
            self.resize(size if replace else max(1, size - 1))

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``: nobody takes any."""
        return {}

    def dump(self) -> None:
        """See ``Pool.dump``: nobody is at anything."""

    def close(self) -> None:
        """See ``Pool.close``."""
        for worker in list(self._hosted):
            self._end(worker)

    def _end(self, worker: int) -> None:
        completed(self._hosted.pop(worker), HostedParts).close()
