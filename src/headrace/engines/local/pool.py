"""Worker processes on this machine: the engine, its pools, and the memory that their blocks lie in.

They are reached over inherited socket pairs: no daemon, no port, nothing to clean up. The first worker is a fresh
interpreter (no fork of the driver: it may hold threads and locks of native libraries). It starts before the driver
imports what it needs for planning, so that both import at the same time. The others are forked from a copy of the
first that has imported and nothing else, where that is safe: see ``template``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from headrace.core.engine_ports import PoolSpec, WorkerContext
from headrace.core.work import BlockRef
from headrace.engines.deaths import Death, never_ready
from headrace.engines.local.machine import Gpus, Seats, family_memory
from headrace.engines.local.process import Listener, WorkerProcess
from headrace.engines.local.spawner import Spawner, Starting
from headrace.engines.object_store import ObjectStore, lending
from headrace.engines.pool import BlockRegistry, Message, Notify, WorkerPool
from headrace.errors import NeverReady, WorkerDied

# Bytes of slots beyond what was in use at one time: the driver learns late which slots are free.
SPARE = 32 << 20
SPARE_PART = 8  # of a budget for blocks and spare slots together, spare is one part in so many at most

Slot = tuple[int, int]  # its owner, and its number there


def spare_of(budget: int) -> int:
    """Return how many bytes of a budget are for slots that nobody uses."""
    return min(SPARE, budget // SPARE_PART)


class SlotRegistry(BlockRegistry):
    """The blocks of an engine whose workers share slots: see ``slots``.

    What is in use and what is idle together may take what was in use at one time, and ``spare`` bytes.
    """

    def __init__(self, spare: int = SPARE) -> None:
        super().__init__()
        self._spare = spare
        self._fds: dict[Slot, int] = {}
        self._sizes: dict[Slot, int] = {}
        self._total = 0  # bytes of all slots, but for those that were asked back
        self._used = 0
        self._peak = 0  # the most that was in use at one time
        self._idle: dict[Slot, None] = {}  # slots without a block; the longest idle is the first
        self._returning: set[Slot] = set()  # slots that were asked back
        self._mapped: dict[int, set[Slot]] = {}  # by worker: the slots that it has mapped
        self._retired: list[tuple[int, int, int]] = []

    def add_slot(self, owner: int, slot: int, fd: int) -> None:
        """Register a new slot with its descriptor, which belongs to the registry from now on."""
        with self._lock:
            self._fds[owner, slot] = fd
            self._sizes[owner, slot] = 0

    def add(self, ref: BlockRef, held: Any = True) -> None:
        """Register a block that was written to a slot."""
        with self._lock:
            super().add(ref, held)
            slot = ref.owner, ref.slot
            self._idle.pop(slot, None)
            if slot not in self._returning:
                self._total += ref.size - self._sizes[slot]
            self._sizes[slot] = ref.size
            self._used += ref.size
            self._peak = max(self._peak, self._used)

    def surplus(self) -> list[Slot]:
        """Return the slots that their owners should return, the longest idle first."""
        with self._lock:
            asked = []
            while self._total > self._peak + self._spare and self._idle:
                slot = next(iter(self._idle))
                del self._idle[slot]
                self._returning.add(slot)
                self._total -= self._sizes[slot]
                asked.append(slot)
            return asked

    def slot_returned(self, owner: int, number: int, returned: bool) -> None:
        """A worker that was asked for a slot returned it, or uses it again."""
        with self._lock:
            slot = owner, number
            if slot not in self._returning:
                return
            self._returning.discard(slot)
            self._total += self._sizes[slot]
            if returned:
                self._close(slot)
            elif not self._holds_block(slot):
                self._idle[slot] = None

    def fd_to_send(self, ref: BlockRef, reader: int) -> int | None:
        """Return the descriptor that ``reader`` must be sent before it can read a block, if it has not got it."""
        with self._lock:
            mapped = self._mapped.setdefault(reader, set())
            if (ref.owner, ref.slot) in mapped:
                return None
            mapped.add((ref.owner, ref.slot))
            return self._fds.get((ref.owner, ref.slot))

    def retired(self) -> list[tuple[int, int, int]]:
        """Return (reader, owner, slot) where a worker still maps a slot that nobody will use again, once."""
        with self._lock:
            retired, self._retired = self._retired, []
            return retired

    def remove_dead(self, worker: int) -> list[BlockRef]:
        """A worker is gone: return the blocks that nobody reads now. What it wrote stays as long as it is read."""
        with self._lock:
            self._mapped.pop(worker, None)
            freed = super().remove_dead(worker)
            for slot in [slot for slot in self._fds if slot[0] == worker]:
                if not self._holds_block(slot):
                    self._close(slot)
            return freed

    def close(self) -> None:
        """Close every descriptor."""
        with self._lock:
            super().close()
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _removed(self, ref: BlockRef) -> None:
        slot = ref.owner, ref.slot
        self._used -= ref.size
        if ref.owner in self._dead:
            self._close(slot)
        elif slot not in self._returning:
            self._idle[slot] = None

    def _holds_block(self, slot: Slot) -> bool:
        return any((ref.owner, ref.slot) == slot for ref, _ in self._blocks.values())

    def _close(self, slot: Slot) -> None:
        if slot not in self._fds:
            return
        os.close(self._fds.pop(slot))
        size = self._sizes.pop(slot)
        if slot in self._returning:
            self._returning.discard(slot)
        else:
            self._total -= size
        self._idle.pop(slot, None)
        for reader, mapped in self._mapped.items():
            if slot in mapped:
                mapped.discard(slot)
                self._retired.append((reader, *slot))


class LocalPool(WorkerPool[WorkerProcess]):
    """A pool whose one thread listens to all workers, passes on what they print, and replaces the dead.

    ``warm`` are workers that were started before; ``spawn(threads, pause)`` starts others. ``free(refs)`` frees the
    slots of blocks.
    """

    def __init__(
        self,
        spec: PoolSpec,
        notify: Notify,
        warm: list[WorkerProcess],
        spawn: Callable[[int, float], WorkerProcess],
        seats: Seats,
        slots: SlotRegistry,
        free: Callable[[list[BlockRef]], None],
    ) -> None:
        # It imports cloudpickle: after the first workers have started.
        from headrace.engines.out_of_band_pickle import pack

        super().__init__(spec, notify, slots)
        self._spawn = spawn
        self._seats = seats
        self._slots = slots
        self._free_slots = free
        with lending(ObjectStore) as self._values:
            packed = pack(spec.factory)
        self._factory = msgspec.structs.replace(packed, links=tuple(value.number for value in self._values))
        self.stall_timeout = spec.stall_timeout
        self._listener = Listener(self)
        for worker in warm:
            self._add_worker(worker)
        self.resize(spec.size)
        self._listener.start()

    # ------------------------------------------------------------ the port

    def dump(self) -> None:
        """See ``Pool.dump``."""
        for worker in self.workers():
            if not worker.preparing:  # else it may not listen to the signal yet, and die of it
                worker.signal(signal.SIGUSR1)

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``."""
        processes = {worker.number: worker.process.pid for worker in self.workers()}
        return {number: family_memory(process) for number, process in processes.items()}

    def close(self, *, kill: bool = True) -> None:
        """See ``Pool.close``; without ``kill``, idle workers close what they host."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._listener.stop()
        workers = list(self._workers.values())
        self._end_all(workers, kill=kill)
        for worker in workers:
            worker.release()
            worker.fail(WorkerDied("the pool was closed"))
            if self._spec.on_end is not None:
                self._spec.on_end(worker.number)
        self._workers.clear()
        self._seats.close()
        self._factory.close()
        self._values.clear()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closing

    # ------------------------------------------------------------ see ``WorkerPool``

    def _possible_size(self, size: int) -> int:
        return self._seats.room(size)

    def _start_worker(self) -> None:
        self._add_worker(self._spawn(self._spec.threads, self._restarts.pause))

    def _add_worker(self, worker: WorkerProcess) -> None:
        worker.round = self._restarts.round
        worker.visible = visible = self._seats.acquire()
        context = partial(WorkerContext, worker.number, self._spec.threads, devices=visible)
        self._workers[worker.number] = worker
        for value in self._values:
            worker.send_object(value)
        factory = self._factory
        worker.send(("host", context, visible, factory))
        self._listener.wake()

    def _end_all(self, workers: Sequence[WorkerProcess], *, kill: bool) -> None:
        asked = [] if kill else [worker for worker in workers if worker.is_idle]
        for worker in asked:
            worker.send(("end",))
        for worker in workers:
            worker.end(self.end_within if worker in asked else 0.0)

    def _end_idle(self, workers: Sequence[WorkerProcess]) -> None:
        self._end_all(workers, kill=False)
        for worker in workers:
            self._listener.dismiss(worker)
            with self._lock:
                self._seats.release(worker.visible)
            self._free(worker.number, self._blocks.remove_dead(worker.number))

    def _send(self, worker: WorkerProcess, message: Message, blocks: Sequence[tuple[BlockRef, Any]]) -> None:
        for ref, _ in blocks:
            fd = self._slots.fd_to_send(ref, worker.number)
            if fd is not None:
                worker.send(("slot", ref.owner, ref.slot), fd)
        worker.send(message)

    def _on_other_message(self, worker: WorkerProcess, message: Message, block: Any) -> None:
        kind = message[0]
        if kind == "slot":
            self._slots.add_slot(worker.number, message[1], worker.inbox.fds.popleft())
        elif kind == "block":
            self._slots.add(message[1])
            self._free_slots([])
        elif kind == "slot returned":
            self._slots.slot_returned(worker.number, *message[1:])
            self._free_slots([])

    def _cause_of_death(self, worker: WorkerProcess, cause: BaseException | None) -> tuple[Death, WorkerDied]:
        death, reason = worker.death(), worker.kill_reason
        self._seats.release(worker.visible)
        worker.release()
        if death.preparing:
            return death, NeverReady(f"while {death.preparing}, {reason}" if reason else str(death))
        return death, WorkerDied(reason or str(death))

    def _never_ready(self, deaths: Sequence[Death]) -> str:
        return never_ready(self._spec.name, deaths)

    def _free(self, reader: int, refs: list[BlockRef]) -> None:
        self._free_slots(refs)
        super()._free(reader, refs)


# ---------------------------------------------------------------- the engine


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

    def machine(self, worker: int) -> str:
        """See ``Engine.machine``: there is one."""
        return ""

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        self._free(self._slots.drop(ref))

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``; with ``kill``, workers are not asked to end."""
        for pool in self._pools:
            pool.close(kill=kill)
        self._slots.close()
        for worker in self._warm:
            worker.end()
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
