"""A pool of worker processes."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.engine_ports import PoolSpec, WorkerContext
from headrace.core.work import BlockRef
from headrace.engines.deaths import Death, never_ready
from headrace.engines.local.gpus import Seats
from headrace.engines.local.listener import Listener
from headrace.engines.local.memory import family
from headrace.engines.local.process import WorkerProcess
from headrace.engines.local.slot_registry import SlotRegistry
from headrace.engines.object_store import ObjectStore, lending
from headrace.engines.pool import MOST_AHEAD, Message, Notify, WorkerPool, let_know
from headrace.errors import NeverReady, WorkerDied

if TYPE_CHECKING:
    from headrace.engines.out_of_band_pickle import OutOfBandPickle


class LocalPool(WorkerPool[WorkerProcess]):
    """A pool whose one thread listens to all workers, passes on what they print, and replaces the dead.

    ``warm`` are workers that were started before; ``spawn(threads, pause)`` starts others. ``free(refs)`` frees the
    slots of blocks. ``most_ahead``: how many calls may be sent ahead.
    """

    most_ahead = MOST_AHEAD

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

    def submit_ahead(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Future[Any]]:
        """Submit calls to the one worker, each with a small stored value: it may begin them after those before.

        Until it does, ``take_back`` has them back.
        """
        futures: list[Future[Any]] = [Future() for _ in calls]
        with self._lock:
            self._check_usable()
            chosen = self._least_loaded()
            numbers = list(itertools.islice(self._call_numbers, len(calls)))
            chosen.open_tickets()
            for number, future in zip(numbers, futures, strict=True):
                future.worker = chosen.number  # type: ignore[attr-defined]
                chosen.add_call(number, future)
            chosen.add_tickets(numbers)
        messages = [
            ("ahead", number, method, (stored.number, *args), stored.in_message())
            for number, (stored, *args) in zip(numbers, calls, strict=True)
        ]
        chosen.send(("ahead", messages))
        return futures

    def take_back(self) -> None:
        """Take back all calls that were sent ahead and that nobody has begun: they are ``NotBegun``."""
        for worker in self.workers():
            let_know(worker.take_back())

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``."""
        processes = {worker.number: worker.process.pid for worker in self.workers()}
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
        worker.send(("host", context, visible, factory.pickled, factory.places, factory.links), factory.fd)
        self._listener.wake()

    def _end_idle(self, workers: Sequence[WorkerProcess]) -> None:
        for worker in workers:
            worker.end(kill=False)
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
        elif kind == "packed":
            self._answered(worker, "result", message[1], _packed(worker, *message[2:]))
        elif kind == "packed note":
            packed = _packed(worker, *message[2:])
            if self._spec.on_packed is not None:
                self._spec.on_packed(worker.number, message[1], packed)
            else:
                packed.close()

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


def _packed(
    worker: WorkerProcess,
    pickled: bytes,
    places: tuple[tuple[int, int], ...],
    links: tuple[int, ...],
    filed: bool,
) -> OutOfBandPickle:
    from headrace.engines.out_of_band_pickle import OutOfBandPickle

    return OutOfBandPickle(pickled, places, worker.inbox.fds.popleft() if filed else -1, links)
