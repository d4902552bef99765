"""The one thread that decides what runs where. It owns all state; other threads post actions to it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.annex.tasks.admission import Admission, BlockedRequests
from headrace.annex.tasks.calls import TaskCall, cancelled, closed, defect, lost
from headrace.annex.tasks.hosting.task_host import CallStopped, TaskHost
from headrace.annex.tasks.hosting.worker_core import restored_error
from headrace.core.engine_ports import PoolSpec, Seat
from headrace.errors import (
    ActorDied,
    ArgumentError,
    CallLost,
    ExecutorClosed,
    HeadraceError,
    NeverReady,
    WorkerDied,
)

if TYPE_CHECKING:
    from headrace.annex.tasks.actors import ActorLife
    from headrace.annex.tasks.requests import Requests
    from headrace.engines.local.pool import LocalEngine, LocalPool
    from headrace.engines.object_store import ObjectStore

Action = Callable[[], None]

_MOST_AT_ONCE = 32  # actions, before what may start is started


class Dispatcher:
    """Admits calls, sends them to workers, and passes on their results; keeps actors alive."""

    def __init__(
        self,
        engine: LocalEngine,
        store: ObjectStore,
        admission: Admission,
        workers: ExecutorWorkers,
        actions: queue.SimpleQueue[Action],
    ) -> None:
        self.engine = engine
        self.store = store
        self.admission = admission
        self.workers = workers
        self._actions = actions
        self._calls: dict[TaskCall, None] = {}  # every call that is not over
        self.actors: dict[ActorLife, None] = {}
        self._closing = False
        self._ended = False
        self._drained = False
        self._blocked = BlockedRequests(admission, time.monotonic)
        self.requests: Requests  # set before the first call
        self.thread = threading.Thread(target=self._run, name="headrace-executor", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------ from any thread

    def post(self, action: Action) -> None:
        """Have ``action`` called by the thread, after the actions that were posted before."""
        self._actions.put(action)
        if self._drained:
            self._drain()

    def stop(self, call: TaskCall, force: bool, recursive: bool) -> None:
        """Cancel a call, though it may have begun."""
        if force and call.life is not None:
            raise ArgumentError(
                f"{call.label}: a method cannot be cancelled by force; ray.kill ends the actor."
            )
        self.post(partial(self._stop, call, force, recursive))

    def cancelled(self, call: TaskCall) -> None:
        """A call's future was cancelled before it began."""
        self.post(partial(self._withdraw, call))

    def shutdown(self, *, cancel: bool, kill: bool) -> None:
        """Accept no more calls; end when all are done, or at once."""
        self.post(partial(self._shutdown, cancel, kill))

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        pause: float | None = None
        while not self._ended:
            try:
                action = self._actions.get(timeout=pause)
            except queue.Empty:
                action = _nothing
            try:
                action()
                self._do_posted()
                del action  # while this thread waits, it keeps nothing alive
                pause = None if self._ended else self._advance()
            except BaseException as error:  # whoever waits must learn that there will be no result
                self._end(error)
                raise

    def _do_posted(self) -> None:
        """Run what was posted meanwhile, before anything is started; not all of it, if there is much."""
        with contextlib.suppress(queue.Empty):
            for _ in range(_MOST_AT_ONCE):
                if self._ended:
                    return
                self._actions.get_nowait()()

    def _advance(self) -> float | None:
        """Start what may start; return how many seconds to wait for the next action at most."""
        for key, seat in self.admission.ready():
            if isinstance(key, TaskCall):
                self._start(key, seat)
            else:
                key.start(seat)  # type: ignore[attr-defined]
        if self._closing and not self._calls:
            self._end()
            return None
        pauses = (self.workers.end_surplus(), self._blocked.advance())
        return min((pause for pause in pauses if pause is not None), default=None)

    # ------------------------------------------------------------ calls

    def accept(self, call: TaskCall) -> None:
        """Carry out a call; an actor's, after those that were accepted before."""
        life = call.life
        if life is None and self._closing and not call.depth:
            call.fail(closed())
        elif life is not None and life.ended_by is not None:
            call.fail(life.ended_by)
        else:
            self._calls[call] = None
            self.await_arguments(call)
            if life is not None:
                life.add(call)
            self._go_on(call)

    def await_arguments(self, call: TaskCall) -> None:
        """Go on with a call, or the construction of an actor, whenever one of its arguments is there."""
        if call.direct:
            call.wait_for_arguments(partial(self.post, partial(self._argument_done, call)))

    def _argument_done(self, call: TaskCall) -> None:
        call.pending -= 1
        self._go_on(call)

    def _go_on(self, call: TaskCall) -> None:
        """Send a call of an actor, or ask for room for one of a function, if its arguments are there."""
        if call.life is not None:
            call.life.go_on()
        elif not call.pending and call in self._calls:
            try:
                call.link_arguments()
            except BaseException as error:
                self.fail(call, error)
                return
            call.requested = True
            self.admission.request(call, call.needs, depth=call.depth)

    def _withdraw(self, call: TaskCall) -> None:
        if call not in self._calls or call.begun:
            return
        self.remove(call)
        if call.life is not None:
            call.life.withdraw(call)
        elif call.requested:
            self.admission.withdraw(call)

    def _start(self, call: TaskCall, seat: Seat) -> None:
        """A call of a function has room."""
        call.requested = False
        if not call.begin():
            self.admission.release(call)
            self.remove(call)
            return
        call.kind = self.workers.kind(call.threads, seat)
        try:
            self.send(call, self.workers.acquire(call.kind))
        except Exception as error:
            self._give_up(call, error)

    def send(self, call: TaskCall, worker: LocalPool) -> None:
        """Have a worker carry out a call."""
        call.worker = worker
        self.requests.running[call.stored.number] = call
        try:
            answer = worker.submit(call.method, call.stored, call.label, *call.said)
        except HeadraceError as error:  # such as workers that ended before they could work, one after another
            died = isinstance(error, WorkerDied)
            if call.life is not None:
                call.life.end(ActorDied(f"{call.label}: {error}") if died else error)
            else:
                self._give_up(call, CallLost(f"{call.label} found no worker: {error}") if died else error)
            return
        call.process = answer.worker  # type: ignore[attr-defined]
        answer.add_done_callback(lambda done: self.post(partial(self._answered, call, done)))

    def _answered(self, call: TaskCall, answer: Future[Any]) -> None:
        error = answer.exception()
        if call.life is not None:
            self.requests.running.pop(call.stored.number, None)
            if call.life.answered(call, error):
                if error is None and answer.result() is not None:  # of an actor that has ended meanwhile
                    answer.result().close()
                return
        else:
            self.admission.resume(call)
            if isinstance(error, WorkerDied) and not self._ended:
                self._died(call, error)
                return
            assert call.kind is not None and call.worker is not None
            self.workers.release(call.kind, call.worker)
            self.admission.release(call)
        self.remove(call)
        if error is None:
            call.succeed(self.store.add_packed(answer.result()))
        elif isinstance(error, (CallStopped, CancelledError)):
            call.fail(cancelled(call))
        else:
            call.fail(restored_error(error))
        if call.life is not None:
            call.life.go_on()

    def _died(self, call: TaskCall, error: WorkerDied) -> None:
        """The worker of a call died: it is tried again in the one that takes its place, or fails."""
        call.deaths += not isinstance(error, NeverReady)
        children, call.children = call.children, None
        for child in children or ():  # it will make them anew
            if not child.begun and not child.future.shared:
                child.future.cancel()
        if call.may_be_tried_again:
            assert call.worker is not None
            self.send(call, call.worker)
        else:
            self._give_up(call, cancelled(call) if call.stopping else lost(call, error))

    def _stop(self, call: TaskCall, force: bool, recursive: bool) -> None:
        for child in list(call.children or ()) if recursive else ():
            self._stop(child, force, recursive)
        if call not in self._calls or (not call.begun and call.future.cancel()):
            return
        call.stopping = True
        assert call.worker is not None
        if force and call.life is None:
            call.worker.kill(call.process, "it was cancelled")
        else:
            call.worker.feed(call.process, "cancel", call.stored.number)

    def _give_up(self, call: TaskCall, error: BaseException) -> None:
        """Fail a call of a function that has room, and end its worker."""
        if call.worker is not None:
            call.worker.close(kill=True)
        self.admission.release(call)
        self.fail(call, error)

    def fail(self, call: TaskCall, error: BaseException) -> None:
        """A call ends with an error."""
        self.remove(call)
        call.fail(error)

    def remove(self, call: TaskCall) -> None:
        """A call is over."""
        self._calls.pop(call, None)
        self.requests.running.pop(call.stored.number, None)
        call.release()

    # ------------------------------------------------------------ actors

    def add_actor(self, actor: ActorLife) -> None:
        """Start an actor as soon as there is room for it."""
        if self._closing:
            actor.end(closed())
            return
        self.actors[actor] = None
        self.await_arguments(actor.construction)
        self.admission.request(actor, actor.needs, for_actor=True)

    def remove_actor(self, actor: ActorLife, *, admitted: bool) -> None:
        """An actor has ended: release what it had."""
        if actor not in self.actors:
            return
        del self.actors[actor]
        if admitted:
            self.admission.release(actor)
        else:
            self.admission.withdraw(actor)

    # ------------------------------------------------------------ the end

    def _shutdown(self, cancel: bool, kill: bool) -> None:
        self._closing = True
        if cancel:
            for call in list(self._calls):
                if call.future.cancel() or call.future.cancelled():
                    self._withdraw(call)
        if kill:
            self._end(closed())

    def _end(self, error: BaseException | None = None) -> None:
        """End every worker; fail what is not over with ``error``."""
        self._ended = self._closing = True
        self.workers.close()
        self.engine.close(kill=error is not None)
        failure = error if isinstance(error, ExecutorClosed) or error is None else defect(error)
        for call in list(self._calls):
            call.fail(failure or closed())
        for actor in list(self.actors):
            actor.end(failure or closed())
        self._calls.clear()
        self.requests.close()
        self.store.close()
        self._drain()
        self._drained = True
        self._drain()

    def _drain(self) -> None:
        """Run the actions that came too late: each fails what it is about."""
        while True:
            try:
                action = self._actions.get_nowait()
            except queue.Empty:
                return
            action()


def _nothing() -> None:
    """Nothing was posted."""


# ---------------------------------------------------------------- workers

MAX_IDLE = 5.0  # seconds after which idle workers beyond the machine's cores end


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """What makes a worker fit for a call: threads, and the devices that it sees (None: whatever there is)."""

    threads: int
    devices: tuple[str, ...] | None = None


class ExecutorWorkers:
    """Starts workers, assigns them to calls, and ends idle ones beyond ``most``.

    ``devices``: those of the executor, which decides what each worker sees.
    """

    def __init__(
        self, engine: LocalEngine, devices: Sequence[str], most: int, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._devices = devices
        self._most = most
        self._clock = clock
        self._idle: list[tuple[WorkerKind, LocalPool, float]] = []  # the longest idle is the first
        self.line: Callable[[], Any]  # what a worker asks of the driver; set before the first call

    def kind(self, threads: int, seat: Seat) -> WorkerKind:
        """Return the kind of worker for a call that has ``seat``."""
        return WorkerKind(threads, tuple(self._devices[i] for i in seat) if self._devices else None)

    def acquire(self, kind: WorkerKind) -> LocalPool:
        """Return an idle worker, or a new one."""
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i][0] == kind:
                return self._idle.pop(i)[1]
        if len(self._idle) >= self._most:
            self._end_idle()
        return self.start("calls", kind)

    def start(self, name: str, kind: WorkerKind) -> LocalPool:
        """Start a worker. Idle ones that may hold memory of its devices end."""
        for place in range(len(self._idle) - 1, -1, -1):
            if set(self._idle[place][0].devices or ()) & set(kind.devices or ()):
                self._end_idle(place)
        line = self.line()
        spec = PoolSpec(
            name,
            TaskHost,
            1,
            kind.threads,
            devices=kind.devices,
            on_end=line.on_end,
        )
        worker = line.pool = self._engine.start(spec, line.on_note)
        return worker

    def release(self, kind: WorkerKind, worker: LocalPool) -> None:
        """A worker is idle again."""
        self._idle.append((kind, worker, self._clock()))

    def end_surplus(self) -> float | None:
        """End idle workers that are too many; return in how many seconds to do so again, if at all."""
        while len(self._idle) > self._most:
            left = MAX_IDLE - (self._clock() - self._idle[0][2])
            if left > 0:
                return left
            self._end_idle()
        return None

    def close(self) -> None:
        """Forget the idle workers: the engine ends them."""
        self._idle.clear()

    def _end_idle(self, place: int = 0) -> None:
        self._idle.pop(place)[1].close(kill=False)
