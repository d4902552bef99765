"""Worker processes on this machine, over inherited socket pairs: no daemon, no port, nothing to clean up.

Workers are fresh interpreters (no fork: the driver may hold threads and locks of native libraries). They start
before the driver imports what it needs for planning, so that both import at the same time.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.core.ports import PoolSpec, WorkerContext
from millrace.core.work import BlockRef, Freed
from millrace.engines.births import Births
from millrace.engines.gpus import Gpus, Seats
from millrace.engines.kept import Filed, Keeper
from millrace.engines.lending import lent_by
from millrace.engines.listen import Listener
from millrace.engines.memory import family
from millrace.engines.process import Death, Spawner, Worker, never_ready
from millrace.errors import NeverReady, WorkerDied

if TYPE_CHECKING:
    from millrace.engines.parcel import Parcel
    from millrace.engines.slots import Store

Notify = Callable[[int, Any], None]


class LocalEngine:
    """Pools of worker processes. ``warm`` workers with ``threads`` threads each are started at once.

    ``devices`` are the GPUs to hand out, by the names that ``CUDA_VISIBLE_DEVICES`` takes. ``budget`` is the memory,
    in bytes, for blocks and for what is kept to lay others in.
    """

    def __init__(
        self, warm: int = 0, threads: int = 1, *, devices: Sequence[str] = (), budget: int | None = None
    ) -> None:
        self._pools: list[LocalPool] = []
        self._store: Store | None = None
        self._gpus = Gpus(devices)
        self._budget = budget
        self._threads = threads
        self._spawner = Spawner()
        self._warm = [self._spawner.worker(threads) for _ in range(warm)]

    def start(self, spec: PoolSpec, notify: Notify) -> LocalPool:
        """See ``Engine.start``. Warm workers with as many threads are taken first."""
        from millrace.engines import slots  # imports pyarrow: after the first workers have started

        if self._store is None:
            self._store = slots.Store(slots.SPARE if self._budget is None else slots.spare_of(self._budget))
        warm = self._warm[: spec.size] if spec.threads == self._threads else []
        if spec.devices is not None:
            seats = Seats(spec.devices)
        else:
            seats = self._gpus.reserve(spec.num_gpus, spec.size, spec.most or spec.size)
        # If the factory cannot travel, warm workers stay ours to end.
        try:
            pool = LocalPool(spec, notify, warm, self._spawner.worker, seats, self._store, self._free)
        except BaseException:
            seats.close()
            raise
        del self._warm[: len(warm)]
        self._pools = [pool for pool in self._pools if not pool.closed]
        self._pools.append(pool)
        return pool

    def keeper(self, dropped: Callable[[int, set[int]], None]) -> Keeper:
        """Return who keeps values that workers are lent; ``dropped`` is told of those that nobody has any more."""
        return Keeper(dropped)

    def end(self, pool: LocalPool, *, kill: bool) -> None:
        """Close a pool, now."""
        pool.close(kill=kill)

    def forget(self, number: int, workers: Collection[int]) -> None:
        """Nobody has a kept value any more: tell the workers that know it."""
        for worker in workers:
            for pool in self._pools:
                pool.tell(worker, ("forget", number))

    def keep(self, ref: BlockRef) -> None:
        """See ``Engine.keep``."""
        if self._store is not None:
            self._store.keep(ref)

    def near(self, worker: int, other: int) -> bool:
        """See ``Engine.near``: there is one machine."""
        return True

    def drop(self, ref: BlockRef) -> None:
        """See ``Engine.drop``."""
        if self._store is not None:
            self._free(self._store.drop(ref))

    def _free(self, refs: list[BlockRef]) -> None:
        """Tell workers that what they laid out is not needed any more, and which slots are too many."""
        for ref in refs:
            for pool in self._pools:
                pool.tell(ref.owner, ("free", ref.slot))
        assert self._store is not None
        for owner, slot in self._store.surplus():
            for pool in self._pools:
                pool.tell(owner, ("give back", slot))
        for reader, owner, slot in self._store.retired():
            for pool in self._pools:
                pool.tell(reader, ("unmap", owner, slot))

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``; with ``kill``, workers are not asked to end."""
        for pool in self._pools:
            pool.close(kill=kill)
        if self._store is not None:
            self._store.close()
        for worker in self._warm:
            worker.end(kill=True)
            worker.release()
        self._warm.clear()
        self._spawner.close()


class LocalPool:
    """A pool whose one thread listens to all workers, passes on what they print, and replaces the dead."""

    def __init__(
        self,
        spec: PoolSpec,
        notify: Notify,
        warm: list[Worker],
        spawn: Callable[[int, float], Worker],
        seats: Seats,
        store: Store,
        free: Callable[[list[BlockRef]], None],
    ) -> None:
        from millrace.engines.parcel import pack  # imports cloudpickle: after the first workers have started

        self._spec = spec
        self._notify = notify
        self._spawn = spawn
        self._seats = seats
        self._store = store
        self._free = free
        self._parcel = pack(spec.factory)
        self._lock = threading.RLock()
        self._workers: dict[int, Worker] = {}
        self._calls = iter(range(1 << 62))
        self._births = Births()
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
                self._lend_to_nobody(worker, args)
                return future
            number = next(self._calls)
            if not chosen.calls:
                chosen.heard = time.monotonic()
            chosen.calls[number] = future
        self._lend(chosen, args)
        travelling = tuple(value.number if isinstance(value, Filed) else value for value in args)
        chosen.send(("call", number, method, travelling))
        return future

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        with self._lock:
            chosen = self._workers.get(worker)
        if chosen is None:
            self._lend_to_nobody(worker, args)
        else:
            self._lend(chosen, args)
            chosen.send(("feed", args))

    def _lend_to_nobody(self, worker: int, args: tuple[Any, ...]) -> None:
        for ref in lent_by(args):
            self._freed(worker, self._store.missed(ref))

    def tell(self, worker: int, message: tuple[Any, ...]) -> None:
        """Send a message to a worker, if it is one of ours."""
        with self._lock:
            chosen = self._workers.get(worker)
        if chosen is not None:
            chosen.send(message)

    def _lend(self, worker: Worker, args: tuple[Any, ...]) -> None:
        for value in args:
            if isinstance(value, Filed):
                _hand_over(worker, value)
        for ref in lent_by(args):
            if not self._store.lend(ref, worker.number):
                self._freed(worker.number, self._store.missed(ref))
                continue
            fd = self._store.to_send(ref, worker.number)
            if fd is not None:
                worker.send(("slot", ref.owner, ref.slot), fd)

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``."""
        with self._lock:
            if self._closing:
                return
            size = self._seats.room(size)
            while len(self._workers) < size:
                self._adopt(self._spawn(self._spec.threads, self._births.pause))
            idle = [
                worker for worker in self._workers.values() if not worker.calls and worker.number not in keep
            ]
            leaving = idle[: max(0, len(self._workers) - size)]
            for worker in leaving:
                del self._workers[worker.number]
            self._size = max(size, len(self._workers))
            self._listener.wake()
        for worker in leaving:
            worker.end(kill=False)
            self._listener.dismiss(worker)
            with self._lock:
                self._seats.give(worker.visible)
            self._freed(worker.number, self._store.bury(worker.number))

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """See ``Pool.kill``."""
        with self._lock:
            chosen = self._workers.get(worker)
            if chosen is not None:
                chosen.sentence = reason
                self._size = self._size if replace else max(1, self._size - 1)
                chosen.kill()

    def dump(self) -> None:
        """See ``Pool.dump``."""
        for worker in self.workers():
            if not worker.preparing:  # else it may not listen to the signal yet, and die of it
                worker.signal(signal.SIGUSR1)

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``."""
        with self._lock:
            processes = {number: worker.process.pid for number, worker in self._workers.items()}
        return {number: family(process) for number, process in processes.items()}

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
                worker.send(("end",))
        for worker in workers:
            worker.end(kill=at_once[worker.number])
            worker.release()
            _fail(worker, WorkerDied("the pool was closed"))
        self._workers.clear()
        self._seats.close()
        self._parcel.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closing

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
        if message[0] == "slot":
            self._store.add_slot(worker.number, message[1], worker.inbox.fds.popleft())
            return
        if message[0] == "laid":
            self._store.add_block(message[1])
            self._free([])
            return
        if message[0] == "given back":
            self._store.given_back(worker.number, *message[1:])
            self._free([])
            return
        if message[0] == "unread":
            self._freed(worker.number, self._store.unread(message[1], worker.number))
            return
        if message[0] == "preparing":
            worker.preparing = message[1]
            return
        if message[0] == "parcel":
            message = ("result", message[1], _arrived(worker, *message[2:]))
        kind, number, value = message
        with self._lock:
            self._births.worked()
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
            death = worker.way_of_death()
            self._seats.give(worker.visible)
            worker.release()
            if death.preparing and not worker.sentence:
                self._births.died(death, worker.born)
            if self._broken is None and self._births.hopeless(self._size):
                self._broken = never_ready(self._spec.name, self._births.deaths)
            while self._broken is None and len(self._workers) < self._size:
                self._adopt(self._spawn(self._spec.threads, self._births.pause))
        self._freed(worker.number, self._store.bury(worker.number))
        _fail(worker, _error(death, worker.sentence))

    def _freed(self, reader: int, refs: list[BlockRef]) -> None:
        self._free(refs)
        if refs:
            self._notify(reader, Freed(tuple(ref.number for ref in refs)))

    def give_up(self, reason: str) -> None:
        """Nothing more can come from this pool: fail every call, now and later."""
        with self._lock:
            self._broken = reason
            workers = list(self._workers.values())
        for worker in workers:
            _fail(worker, WorkerDied(reason))

    def _adopt(self, worker: Worker) -> None:
        worker.born = self._births.round
        worker.visible = visible = self._seats.take()
        context = partial(WorkerContext, worker.number, self._spec.threads, devices=visible)
        self._workers[worker.number] = worker
        worker.send(("host", context, visible, self._parcel.pickled, self._parcel.places), self._parcel.fd)


def _error(death: Death, sentence: str) -> WorkerDied:
    if death.preparing:
        return NeverReady(f"while {death.preparing}, {sentence}" if sentence else str(death))
    return WorkerDied(sentence or str(death))


def _arrived(
    worker: Worker, pickled: bytes, places: tuple[tuple[int, int], ...], links: tuple[int, ...], filed: bool
) -> Parcel:
    from millrace.engines.parcel import Parcel

    return Parcel(pickled, places, worker.inbox.fds.popleft() if filed else -1, links)


def _hand_over(worker: Worker, kept: Filed) -> None:
    """Send a kept value, and before it those that it refers to, unless the worker knows them."""
    for link in kept.links:
        assert isinstance(link, Filed)
        _hand_over(worker, link)
    if worker.number in kept.known:
        return
    if not kept.once:
        kept.known.add(worker.number)
    with kept.to_send() as (message, fd):
        worker.send(message, fd)


def _fail(worker: Worker, error: WorkerDied) -> None:
    for future in worker.calls.values():
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
    worker.calls.clear()
