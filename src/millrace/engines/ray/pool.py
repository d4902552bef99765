"""A pool of actors: Ray places, moves and watches them; all else is as on one machine.

One thread asks all of them what they have to tell, and replaces those that end.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

import ray
import ray.exceptions

from millrace.core.events import PoolWaits
from millrace.core.ports import PoolSpec
from millrace.core.work import Freed
from millrace.engines.births import Births
from millrace.engines.lending import Lending, lent_by
from millrace.engines.parcel import apart
from millrace.engines.process import Death
from millrace.engines.ray.actor import actor_class, options_of
from millrace.engines.ray.cluster import Drains, offered
from millrace.engines.ray.kept import RayKept, Stored
from millrace.engines.ray.member import Member
from millrace.engines.ray.words import asked_for, never_ready, not_shared, was_killed, way_of_death
from millrace.errors import EngineError, MillraceError, NeverReady, NodeLost, ResourcesUnavailable, WorkerDied
from millrace.version import __version__

Notify = Callable[[int, Any], None]

TICK = 0.2  # seconds
END_WITHIN = 10.0
TELL_AFTER = 5.0  # seconds between two messages of a pool that waits for the cluster
ROOM_AFTER = 3.0  # seconds after which other pools make room for one that has nobody

_numbers = itertools.count(1)


class RayPool:
    """A pool of actors.

    ``asked``: somebody has asked for its workers; ``begun``: it once had as many as it cannot do without.
    """

    def __init__(
        self,
        spec: PoolSpec,
        notify: Notify,
        lending: Lending,
        drains: Drains,
        may_grow: Callable[[], bool],
        make_room: Callable[[], None],
        pool_timeout: float,
    ) -> None:
        self._spec = spec
        self._notify = notify
        self._lending = lending
        self._drains = drains
        self._may_grow = may_grow
        self._make_room = make_room
        self._pool_timeout = pool_timeout
        self._parcel = ray.put(apart(spec.factory))
        self._options = options_of(spec)
        self._actor = actor_class(self._options)
        self._lock = threading.RLock()
        self._workers: dict[int, Member] = {}
        self._calls = itertools.count()
        self._births = Births()
        self._broken: MillraceError | None = None
        self._closing = False
        self._ender: threading.Thread | None = None
        self._size = spec.size
        self._least = min(spec.size, spec.size if spec.least is None else spec.least)
        self._short_since: float | None = time.monotonic()
        self._told = self._made_room = time.monotonic()
        self.asked = self.begun = False
        self._fill()
        self._thread = threading.Thread(target=self._listen, name="millrace-ray-pool", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ the port

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``."""
        with self._lock:
            self._check()
            self.asked = True
            return {number: len(each.calls) for number, each in self._workers.items() if each.is_ready}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``."""
        future: Future[Any] = Future()
        with self._lock:
            self._check()
            if worker is None:
                ready = [each for each in self._workers.values() if each.is_ready]
                ready = ready or self._staying() or list(self._workers.values())
                worker = min(ready, key=lambda each: len(each.calls)).number
            future.worker = worker  # type: ignore[attr-defined]
            chosen = self._workers.get(worker)
            if chosen is not None:
                number = next(self._calls)
                chosen.calls[number] = future
        if chosen is None:
            future.set_exception(WorkerDied(f"worker {worker} is gone"))
            self._lend_to_nobody(worker, args)
        else:
            travelling = tuple(value.number if isinstance(value, RayKept) else value for value in args)
            chosen.send(("call", number, method, travelling), self._lend(chosen, args))
        return future

    def tell(self, worker: int, message: tuple[Any, ...]) -> None:
        """Send a message to a worker, if it is one of ours."""
        with self._lock:
            chosen = self._workers.get(worker)
        if chosen is not None:
            chosen.send(message)

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        with self._lock:
            chosen = self._workers.get(worker)
        if chosen is None:
            self._lend_to_nobody(worker, args)
        else:
            chosen.send(("feed", args), self._lend(chosen, args))

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``: it grows as the cluster places workers."""
        with self._lock:
            if self._closing:
                return
            staying = self._staying()
            surplus = max(0, len(staying) - size)
            idle = [each for each in staying if not each.calls and each.number not in keep]
            leaving = sorted(idle, key=lambda each: each.here)[:surplus]  # those not placed yet first
            for worker in leaving:
                del self._workers[worker.number]
            self._size = max(size, len(self._staying()))
            self._fill()
        self._end(leaving)

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """See ``Pool.kill``."""
        with self._lock:
            chosen = self._workers.get(worker)
            if chosen is None:
                return
            chosen.sentence = reason
            self._size = self._size if replace else max(1, self._size - 1)
        chosen.kill()

    def dump(self) -> None:
        """See ``Pool.dump``."""
        for worker in self._members():
            if worker.here:
                worker.send(("dump",))

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``: each machine's is watched by Ray."""
        return {}

    def close(self, *, kill: bool = True) -> None:
        """See ``Pool.close``; without ``kill``, workers close what they host, except those still at a call."""
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
                target=self._end_all, args=(workers, kill), name="millrace-ray-end", daemon=True
            )
            self._ender.start()

    def _end_all(self, workers: Sequence[Member], kill: bool) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for worker in workers:
            worker.fail(WorkerDied("the pool was closed"))
        self._end([] if kill else [each for each in workers if each.here and not each.calls])
        for worker in workers:
            worker.kill()
            worker.let_go()
        self._parcel = None

    @property
    def closed(self) -> bool:
        """Whether it is closed, with nothing left."""
        with self._lock:
            return self._ender is not None and not self._ender.is_alive()

    @property
    def placed(self) -> bool:
        """Whether every worker has a place, or nothing can come of it any more."""
        with self._lock:
            return self._broken is not None or all(worker.here for worker in self._workers.values())

    # ------------------------------------------------------------ workers

    def _members(self) -> list[Member]:
        with self._lock:
            return list(self._workers.values())

    def _staying(self) -> list[Member]:
        return [worker for worker in self._workers.values() if not worker.leaving]

    def node(self, worker: int) -> str:
        """Return the node that a worker is on, if it is one of ours and was placed."""
        with self._lock:
            found = self._workers.get(worker)
            return found.node if found is not None else ""

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _fill(self) -> None:
        """Ask the cluster for the workers that are missing."""
        with self._lock:
            wanted = self._size if self._may_grow() else min(self._size, self._least)
            while self._broken is None and not self._closing and len(self._staying()) < wanted:
                number = next(_numbers)
                actor = self._actor.remote(
                    number, self._spec.threads, sys.path, self._spec.sees, self._births.pause, self._parcel
                )
                answer, block = actor.poll.remote()
                self._workers[number] = Member(number, actor, answer, block, self._births.round)

    @property
    def short(self) -> bool:
        """True while the pool has not what it cannot do without."""
        return self._short_since is not None

    def give_room(self) -> None:
        """Let go of a worker that the pool can do without, or of those that it merely waits for.

        It may be at something that waits for the very stage that has nobody, so nobody waits for it to end that.
        """
        with self._lock:
            staying = sorted(self._staying(), key=lambda each: (each.here, len(each.calls)))
            extra = staying[: max(0, len(staying) - self._least)]
            waiting = [worker for worker in extra if not worker.here]
            for worker in waiting:
                del self._workers[worker.number]
            given = waiting or extra[:1]
            for worker in given:
                worker.evicted = True
        for worker in given:
            worker.kill()

    def _end(self, workers: Iterable[Member]) -> None:
        """Let workers close what they host, then end them."""
        leaving = list(workers)
        ends = [worker.actor.end.remote() for worker in leaving if worker.here]
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(ends, num_returns=len(ends), timeout=END_WITHIN) if ends else None
        for worker in leaving:
            worker.kill()
            self._freed(worker.number, self._lending.bury(worker.number))

    def _give_up(self, error: MillraceError) -> None:
        """Nothing more can come from this pool: fail every call, now and later."""
        with self._lock:
            self._broken = self._broken or error
            workers = list(self._workers.values())
        for worker in workers:
            worker.fail(NeverReady(str(error)))

    def _bury(self, worker: Member, error: BaseException) -> None:
        """A worker is gone: fail its calls, and put another in its place."""
        reason, lost = way_of_death(error)
        if worker.unsure and (lost or was_killed(error)):
            reason, lost = "the machine that it was on could not be reached", True
        if worker.evicted:
            reason, lost = "it made room for a stage that had nobody", True
        with self._lock:
            if self._closing or self._workers.pop(worker.number, None) is None:
                return
            worker.kill()
            if worker.preparing and not worker.sentence and not lost:
                self._births.died(Death(worker.pid, -1, worker.preparing, reason), worker.born)
            if self._births.hopeless(self._size):
                self._broken = self._broken or WorkerDied(never_ready(self._spec.name, self._births))
            self._fill()
        self._freed(worker.number, self._lending.bury(worker.number))
        doing = f"while {worker.preparing}, " if worker.preparing else ""
        said = f"{doing}{worker.sentence or reason}"
        if lost and not worker.sentence:
            worker.fail(NodeLost(said))
        else:
            worker.fail(NeverReady(said) if worker.preparing else WorkerDied(worker.sentence or reason))

    # ------------------------------------------------------------ blocks

    def _lend(self, worker: Member, args: tuple[Any, ...]) -> dict[int, Any]:
        objects = {}
        for value in args:
            if isinstance(value, RayKept):
                worker.hand_over(value)
        for ref in lent_by(args):
            held = self._lending.lend(ref, worker.number)
            if held is not None:
                objects[ref.number] = held
            else:
                self._freed(worker.number, self._lending.missed(ref))
        with self._lock:
            gone = worker.number not in self._workers
        if gone and objects:  # it was buried meanwhile
            self._freed(worker.number, self._lending.bury(worker.number))
        return objects

    def _lend_to_nobody(self, worker: int, args: tuple[Any, ...]) -> None:
        for ref in lent_by(args):
            self._freed(worker, self._lending.missed(ref))

    def _freed(self, reader: int, numbers: list[int]) -> None:
        if numbers:
            self._notify(reader, Freed(tuple(numbers)))

    # ------------------------------------------------------------ the thread

    def _listen(self) -> None:
        try:
            while not self._closing:
                self._part()
                self._fill()
                self._watch_size()
                asked = {worker.answer: worker for worker in self._members()}
                if not asked:
                    time.sleep(TICK)
                    continue
                ready, _ = ray.wait(list(asked), num_returns=1, timeout=TICK)
                if ready and len(asked) > 1:
                    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
                for answer in ready:
                    self._hear_from(asked[answer])
        except BaseException as error:  # whoever waits for an answer must learn that none will come
            if not self._closing:
                self._give_up(EngineError(f"The thread that listens to the workers failed: {error!r}"))
                raise

    def _part(self) -> None:
        """Give nothing more to workers whose machines are about to go, and end those that have nothing to do."""
        self._drains.look()
        done = []
        with self._lock:
            for worker in list(self._workers.values()):
                worker.leaving = worker.leaving or (worker.here and worker.node in self._drains)
                if worker.leaving and not worker.calls:
                    done.append(self._workers.pop(worker.number))
        if done:
            threading.Thread(target=self._end, args=(done,), name="millrace-ray-end", daemon=True).start()

    def _hear_from(self, worker: Member) -> None:
        try:
            messages = ray.get(worker.answer)
            block = worker.block
            worker.ask()
        except ray.exceptions.ActorUnavailableError as error:
            # What it had to tell may be lost. Once it is ended for certain, Ray knows what was the matter.
            if worker.unsure:
                self._bury(worker, error)
                return
            worker.unsure = True
            worker.kill()
            worker.ask()
            return
        except ray.exceptions.RayError as error:
            self._bury(worker, error)
            return
        for message in messages:
            self._hear(worker, message, block)

    def _hear(self, worker: Member, message: tuple[Any, ...], block: Any) -> None:
        kind = message[0]
        if kind in ("result", "error"):
            self._answered(worker, *message)
        elif kind == "parcel":
            _, number, pickled, size, links = message
            self._settle(worker, "result", number, Stored(pickled, None if pickled else block, size, links))
        elif kind == "note":
            self._notify(worker.number, message[1])
        elif kind == "laid":
            self._lending.add(message[1], block)
        elif kind == "unread":
            self._freed(worker.number, self._lending.unread(message[1], worker.number))
        elif kind == "preparing":
            worker.preparing = message[1]
        elif kind == "here":
            _, version, worker.pid, place, worker.node = message
            if version != __version__:
                self._give_up(
                    EngineError(
                        f"The workers on {place} have Millrace {version}, and this is {__version__}: install the "
                        "same on all machines, or name it in runtime_env."
                    )
                )
            worker.here = True
        elif kind == "blind":
            self._give_up(not_shared(*message[1:]))

    def _answered(self, worker: Member, kind: str, number: int, pickled: bytes) -> None:
        try:
            value = pickle.loads(pickled)
        except Exception as error:
            kind, value = "error", error
        self._settle(worker, kind, number, value)

    def _settle(self, worker: Member, kind: str, number: int, value: Any) -> None:
        with self._lock:
            self._births.worked()
            future = worker.calls.pop(number, None)
        if future is not None:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(value) if kind == "error" else future.set_result(value)

    def _watch_size(self) -> None:
        """See whether the pool has what it cannot do without, and tell of it while it has not."""
        now = time.monotonic()
        with self._lock:
            here = sum(worker.is_ready for worker in self._workers.values())
            self.begun = self.begun or here >= self._least
            if here >= (1 if self.begun else self._least):
                self._short_since = None
                return
            self._short_since = self._short_since or now
            waited = now - self._short_since
        if waited >= ROOM_AFTER and now - self._made_room >= ROOM_AFTER:
            self._made_room = now
            self._make_room()
        each = asked_for(self._options)
        if waited >= self._pool_timeout:
            self._give_up(
                ResourcesUnavailable(
                    f"{self._spec.name} needs {self._least} × ({each}), and has {here} after {waited:.0f} s. "
                    f"The cluster has {offered()}. What was committed is kept. Ask for less (concurrency=, "
                    "num_cpus=, num_gpus=, memory=), or let it grow; pool_timeout= says how long to wait."
                )
            )
        elif now - self._told >= TELL_AFTER:
            self._told = now
            self._notify(-1, PoolWaits(self._spec.name, here, self._least, each, waited))
