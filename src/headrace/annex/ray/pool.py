"""The engine on a Ray cluster, and its pools of actors: Ray places, moves and watches them.

All else is as on one machine. One thread of a pool asks its actors for their messages, and replaces those that end.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
import ray.exceptions

from headrace.annex.ray.actor import RayWorkerHandle, actor_class, options_of
from headrace.annex.ray.cluster import (
    DrainingNodes,
    asked_for,
    cause_of_death,
    never_ready,
    not_shared,
    offered,
    was_killed,
)
from headrace.annex.ray.object_store import RayObjectStore, lent
from headrace.annex.ray.rates import RayRates
from headrace.core.engine_ports import PoolSpec
from headrace.core.events import PoolWaits
from headrace.core.work import BlockRef
from headrace.engines.deaths import Death
from headrace.engines.object_store import lending
from headrace.engines.out_of_band_pickle import apart
from headrace.engines.pool import BlockRegistry, Message, Notify, WorkerPool
from headrace.errors import EngineError, NeverReady, NodeLost, ResourcesUnavailable, WorkerDied
from headrace.version import __version__

TICK = 0.2  # seconds
WEIGH_EVERY = 0.5  # seconds between two questions of how much memory a worker takes
NOTIFY_EVERY = 5.0  # seconds between two messages of a pool that waits for the cluster
ROOM_AFTER = 3.0  # seconds after which other pools make room for one that has no workers

_numbers = itertools.count(1)


class RayPool(WorkerPool[RayWorkerHandle]):
    """A pool of actors.

    ``asked``: somebody has asked for its workers; ``begun``: it once had as many as it cannot do without.
    """

    def __init__(
        self,
        spec: PoolSpec,
        notify: Notify,
        blocks: BlockRegistry,
        draining: DrainingNodes,
        may_grow: Callable[[], bool],
        make_room: Callable[[], None],
        pool_timeout: float,
    ) -> None:
        super().__init__(spec, notify, blocks)
        self._draining = draining
        self._may_grow = may_grow
        self._make_room = make_room
        self._pool_timeout = pool_timeout
        with lending(RayObjectStore) as values:
            factory = apart(spec.factory)
        self._factory = ray.put(factory)
        self._lent = lent(values)
        self._options = options_of(spec)
        self._actor = actor_class(self._options)
        self._ender: threading.Thread | None = None
        self._least = min(spec.size, spec.size if spec.least is None else spec.least)
        self._short_since: float | None = time.monotonic()
        self._notified = self._made_room = time.monotonic()
        self._weighed = 0.0
        self.asked = self.begun = False
        self._fill()
        self._thread = threading.Thread(target=self._listen, name="headrace-ray-pool", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ the port

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``."""
        loads = super().loads()
        self.asked = True
        return loads

    def dump(self) -> None:
        """See ``Pool.dump``."""
        for worker in self.workers():
            if worker.placed:
                worker.send(("dump",))

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``: as workers said last, who are asked now."""
        now, workers = time.monotonic(), [worker for worker in self.workers() if worker.placed]
        if now - self._weighed >= WEIGH_EVERY:
            self._weighed = now
            for worker in workers:
                worker.send(("weigh",))
        return {worker.number: worker.memory for worker in workers if worker.memory}

    def close(self, *, kill: bool = True) -> None:
        """See ``Pool.close``; without ``kill``, idle workers close what they host."""
        self.begin_to_close(kill=kill)
        if self._ender is not None:
            self._ender.join()

    def begin_to_close(self, *, kill: bool) -> None:
        """Close it, and do not wait: ``close`` does, afterwards."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            workers = list(self._workers.values())
            self._workers.clear()
            self._ender = threading.Thread(
                target=self._end_all, args=(workers, kill), name="headrace-ray-end", daemon=True
            )
            self._ender.start()

    def _end_all(self, workers: Sequence[RayWorkerHandle], kill: bool) -> None:
        idle = [] if kill else [each for each in workers if each.is_idle]
        for worker in workers:
            worker.fail(WorkerDied("the pool was closed"))
        self._end_idle(idle)
        for worker in workers:
            worker.kill()
        self._thread.join()  # whose wait for an answer ends with the workers
        for worker in workers:
            worker.release()
        self._factory, self._lent = None, ((), [])

    @property
    def closed(self) -> bool:
        """Whether it is closed, with nothing left."""
        with self._lock:
            return self._ender is not None and not self._ender.is_alive()

    # ------------------------------------------------------------ for the engine

    @property
    def placed(self) -> bool:
        """Whether every worker has a machine, or none will come any more."""
        with self._lock:
            return self._broken is not None or all(worker.placed for worker in self._workers.values())

    @property
    def short(self) -> bool:
        """Whether the pool has fewer workers than it cannot do without."""
        return self._short_since is not None

    def node(self, worker: int) -> str:
        """Return the node that a worker is on, if it is one of ours and was placed."""
        with self._lock:
            found = self._workers.get(worker)
            return found.node if found is not None else ""

    def give_room(self) -> None:
        """End a worker that the pool can do without, or those that it merely waits for.

        It may be at something that waits for the very stage that has no workers, so nobody waits for its call to end.
        """
        with self._lock:
            staying = sorted(self._staying(), key=lambda each: (each.placed, len(each.calls)))
            extra = staying[: max(0, len(staying) - self._least)]
            waiting = [worker for worker in extra if not worker.placed]
            for worker in waiting:
                del self._workers[worker.number]
            evicted = waiting or extra[:1]
            for worker in evicted:
                worker.evicted = True
        for worker in evicted:
            worker.kill()

    # ------------------------------------------------------------ see ``WorkerPool``

    def _wanted_size(self) -> int:
        """See ``WorkerPool``: it grows as the cluster places workers."""
        return self._size if self._may_grow() else min(self._size, self._least)

    def _start_worker(self) -> None:
        number = next(_numbers)
        actor = self._actor.remote(
            number,
            self._spec.threads,
            sys.path,
            self._spec.sees,
            self._restarts.pause,
            self._factory,
            self._lent,
        )
        worker = RayWorkerHandle(number, actor)
        worker.round = self._restarts.round
        self._workers[number] = worker

    def _end_idle(self, workers: Iterable[RayWorkerHandle]) -> None:
        leaving = list(workers)
        ends = [worker.actor.end.remote() for worker in leaving if worker.is_idle]
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(ends, num_returns=len(ends), timeout=self.end_within) if ends else None
        for worker in leaving:
            worker.kill()
            self._free(worker.number, self._blocks.remove_dead(worker.number))

    def _send(
        self, worker: RayWorkerHandle, message: Message, blocks: Sequence[tuple[BlockRef, Any]]
    ) -> None:
        worker.send(message, {ref.number: reference for ref, reference in blocks})

    def _on_other_message(self, worker: RayWorkerHandle, message: Message, block: Any) -> None:
        kind = message[0]
        if kind == "block":
            self._blocks.add(message[1], block)
        elif kind == "placed":
            _, version, worker.pid, address, worker.node = message
            if version != __version__:
                self.give_up(
                    EngineError(
                        f"The workers on {address} have Headrace {version}, and this is {__version__}: install the "
                        "same on all machines, or name it in runtime_env."
                    )
                )
            worker.placed = True
        elif kind == "memory":
            worker.memory = message[1]
        elif kind == "output not visible":
            self.give_up(not_shared(*message[1:]))

    def _answered(self, worker: RayWorkerHandle, kind: str, number: int, value: Any) -> None:
        try:
            value = pickle.loads(value)
        except Exception as error:
            kind, value = "error", error
        super()._answered(worker, kind, number, value)

    def _cause_of_death(
        self, worker: RayWorkerHandle, cause: BaseException | None
    ) -> tuple[Death | None, WorkerDied]:
        assert cause is not None
        reason, lost = cause_of_death(cause)
        if worker.unreachable and (lost or was_killed(cause)):
            reason, lost = "the machine that it was on could not be reached", True
        if worker.evicted:
            reason, lost = "it made room for a stage that had no workers", True
        death = None if lost else Death(worker.pid, -1, worker.preparing, reason)
        text = f"while {worker.preparing}, " if worker.preparing else ""
        text += worker.kill_reason or reason
        if lost and not worker.kill_reason:
            return death, NodeLost(text)
        return death, NeverReady(text) if worker.preparing else WorkerDied(text)

    def _never_ready(self, deaths: Sequence[Death]) -> str:
        return never_ready(self._spec.name, deaths)

    # ------------------------------------------------------------ the thread

    def _listen(self) -> None:
        try:
            while not self._closing:
                self._leave_draining_nodes()
                self._fill()
                self._watch_size()
                asked = {worker.answer: worker for worker in self.workers()}
                if not asked:
                    time.sleep(TICK)
                    continue
                ready, _ = ray.wait(list(asked), num_returns=1, timeout=TICK)
                if ready and len(asked) > 1:
                    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
                for answer in ready:
                    self._read_from(asked[answer])
        except BaseException as error:  # whoever waits for an answer must learn that none will come
            if not self._closing:
                self.give_up(EngineError(f"The thread that listens to the workers failed: {error!r}"))
                raise

    def _leave_draining_nodes(self) -> None:
        """Give nothing more to workers whose machines are about to go, and end those that have nothing to do."""
        self._draining.refresh()
        done = []
        with self._lock:
            for worker in list(self._workers.values()):
                worker.leaving = worker.leaving or (worker.placed and worker.node in self._draining)
                if worker.leaving and not worker.calls:
                    done.append(self._workers.pop(worker.number))
        if done:
            threading.Thread(
                target=self._end_idle, args=(done,), name="headrace-ray-end", daemon=True
            ).start()

    def _read_from(self, worker: RayWorkerHandle) -> None:
        try:
            messages = ray.get(worker.answer)
            block = worker.block
            worker.ask()
        except ray.exceptions.ActorUnavailableError as error:
            # Its messages may be lost. Once it is ended for certain, Ray knows what was the matter.
            if worker.unreachable:
                self.remove_dead(worker, error)
                return
            worker.unreachable = True
            worker.kill()
            worker.ask()
            return
        except ray.exceptions.RayError as error:
            self.remove_dead(worker, error)
            return
        for message in messages:
            self.on_message(worker, message, block)

    def _watch_size(self) -> None:
        """See whether the pool has what it cannot do without; report, make room or give up while it has not."""
        now = time.monotonic()
        with self._lock:
            ready = sum(worker.is_ready for worker in self._workers.values())
            self.begun = self.begun or ready >= self._least
            if ready >= (1 if self.begun else self._least):
                self._short_since = None
                return
            self._short_since = self._short_since or now
            waited = now - self._short_since
        if waited >= ROOM_AFTER and now - self._made_room >= ROOM_AFTER:
            self._made_room = now
            self._make_room()
        each = asked_for(self._options)
        if waited >= self._pool_timeout:
            self.give_up(
                ResourcesUnavailable(
                    f"{self._spec.name} needs {self._least} × ({each}), and has {ready} after {waited:.0f} s. The "
                    f"cluster has {offered()}. Finished work is kept. Ask for less (concurrency=, num_cpus=, "
                    "num_gpus=, memory=), or let it grow; hr.Ray(pool_timeout=…) says how long to wait."
                )
            )
        elif now - self._notified >= NOTIFY_EVERY:
            self._notified = now
            self._notify(-1, PoolWaits(self._spec.name, ready, self._least, each, waited))


class RayEngine:
    """Pools of actors on the cluster that this process is connected to; see ``cluster.connect``.

    ``pool_timeout``: seconds in which the cluster has to place as many workers as a pool cannot do without.
    """

    def __init__(self, *, pool_timeout: float = 600.0) -> None:
        self._pools: list[RayPool] = []
        self._blocks = BlockRegistry()
        self._draining = DrainingNodes()
        self._pool_timeout = pool_timeout

    def start(self, spec: PoolSpec, notify: Notify) -> RayPool:
        """See ``Engine.start``. Workers join the pool when the cluster has placed them."""
        pool = RayPool(
            spec, notify, self._blocks, self._draining, self._may_grow, self._make_room, self._pool_timeout
        )
        self._pools = [pool for pool in self._pools if not pool.closed]
        self._pools.append(pool)
        return pool

    def _may_grow(self) -> bool:
        """Say whether every pool has what it cannot do without: only then do pools take more.

        Whoever asks one of them for its workers has started all pools that there will be.
        """
        asked = any(pool.asked for pool in self._pools)
        return asked and all(pool.begun and not pool.short for pool in self._pools)

    def _make_room(self) -> None:
        """A pool has no workers, as machines went and other pools hold what is left: have those give room."""
        for pool in self._pools:
            pool.give_room()

    def machine(self, worker: int) -> str:
        """See ``Engine.machine``: its node."""
        return next(filter(None, (pool.node(worker) for pool in self._pools)), "")

    def rates(self) -> RayRates:
        """See ``EngineParts.rates``."""
        return RayRates()

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""
        self._blocks.hold(ref)

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        self._blocks.drop(ref)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``; the cluster stays as it is."""
        for pool in self._pools:
            pool.begin_to_close(kill=kill)
        for pool in self._pools:
            pool.close(kill=kill)
        self._pools = []
        self._blocks.close()
