"""Worker processes on this machine, over inherited socket pairs: no daemon, no port, nothing to clean up.

The first worker is a fresh interpreter (no fork of the driver: it may hold threads and locks of native libraries). It
starts before the driver imports what it needs for planning, so that both import at the same time. The others are
forked from a copy of the first that has imported and nothing else, where that is safe: see ``template``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headrace.core.engine_ports import PoolSpec
from headrace.core.work import BlockRef
from headrace.engines.local.gpus import Gpus, Seats
from headrace.engines.local.pool import LocalPool
from headrace.engines.local.slot_registry import SPARE, SlotRegistry, spare_of
from headrace.engines.local.spawner import Spawner, Starting
from headrace.engines.object_store import ObjectStore
from headrace.engines.pool import Notify


class LocalEngine:
    """Pools of worker processes. ``warm`` workers with ``threads`` threads each are started at once.

    ``devices`` are the GPUs for workers, by the names that ``CUDA_VISIBLE_DEVICES`` takes. ``budget`` is the memory,
    in bytes, for blocks and for slots that are free.
    """

    def __init__(
        self,
        warm: int = 0,
        threads: int = 1,
        *,
        devices: Sequence[str] = (),
        budget: int | None = None,
        starting: Starting | None = None,
    ) -> None:
        self._pools: list[LocalPool] = []
        self._slots = SlotRegistry(SPARE if budget is None else spare_of(budget))
        self._gpus = Gpus(devices)
        self._threads = threads
        self._closed = False
        self._spawner = Spawner.kept_or_new(starting or Starting())
        self._warm = [self._spawner.worker(threads) for _ in range(warm)]

    def start(self, spec: PoolSpec, notify: Notify) -> LocalPool:
        """See ``Engine.start``. Warm workers with as many threads are used first."""
        warm = self._warm[: spec.size] if spec.threads == self._threads else []
        if spec.devices is not None:
            seats = Seats(spec.devices)
        else:
            seats = self._gpus.reserve(spec.num_gpus, spec.size, spec.most or spec.size)
        if max(spec.size, spec.most or 0) > len(warm):
            self._spawner.expect_more()
        # If the factory cannot be pickled, warm workers stay ours to end.
        try:
            pool = LocalPool(spec, notify, warm, self._spawner.worker, seats, self._slots, self._free)
        except BaseException:
            seats.close()
            raise
        del self._warm[: len(warm)]
        self._pools = [pool for pool in self._pools if not pool.closed]
        self._pools.append(pool)
        return pool

    def object_store(self, on_release: Callable[[int, set[int]], None]) -> ObjectStore:
        """Return a store for values; ``on_release`` gets the number of one that nobody refers to, and who has it."""
        return ObjectStore(on_release)

    def forget(self, number: int, workers: Collection[int]) -> None:
        """Nobody refers to a stored value any more: have the workers that have it forget it."""
        for worker in workers:
            self._send_to(worker, ("forget", number))

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""
        self._slots.hold(ref)

    def same_machine(self, worker: int, other: int) -> bool:
        """See ``Engine.same_machine``: there is one machine."""
        return True

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        self._free(self._slots.drop(ref))

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``; with ``kill``, workers are not asked to end."""
        for pool in self._pools:
            pool.close(kill=kill)
        self._slots.close()
        for worker in self._warm:
            worker.end(kill=True)
            worker.release()
        self._warm.clear()
        if not self._closed:  # what was kept may be another engine's by now
            self._closed = True
            self._spawner.close()

    def _free(self, refs: list[BlockRef]) -> None:
        """Tell workers which of their blocks are not needed any more, and which slots are too many."""
        for ref in refs:
            self._send_to(ref.owner, ("free", ref.slot))
        for owner, slot in self._slots.surplus():
            self._send_to(owner, ("return slot", slot))
        for reader, owner, slot in self._slots.retired():
            self._send_to(reader, ("unmap", owner, slot))

    def _send_to(self, worker: int, message: tuple[object, ...]) -> None:
        for pool in self._pools:
            pool.send_to(worker, message)
