"""The one thread that decides what runs where. It owns all state; other threads post actions to it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.core.devices import Seat
from headrace.core.warn import warn
from headrace.errors import (
    CallLost,
    EngineError,
    ExecutorClosed,
    HeadraceError,
    NeverReady,
    NodeLost,
    WorkerDied,
)
from headrace.tasks.admission import Admission
from headrace.tasks.calls import TaskCall
from headrace.tasks.executor_engine import ExecutorEngine, TaskWorker
from headrace.tasks.task_host import restored_error
from headrace.tasks.workers import ExecutorWorkers, WorkerKind

if TYPE_CHECKING:
    from headrace.engines.object_store import ObjectStore
    from headrace.tasks.actor_life import ActorLife

Action = Callable[[], None]

WARN_AFTER = 5.0  # seconds after which a request for what only actors have is worth a warning


class Dispatcher:
    """Admits calls, sends them to workers, and passes on their results; keeps actors alive."""

    def __init__(
        self,
        engine: ExecutorEngine,
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
        self._calls: dict[TaskCall, None] = {}  # every call of a function that is not over
        self._actors: dict[ActorLife, None] = {}
        self._checks: dict[Callable[[], float], None] = {}
        self._closing = False
        self._ended = False
        self._drained = False
        self._blocked_since: float | None = None
        self._warned = False
        self.thread = threading.Thread(target=self._run, name="headrace-executor", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------ from any thread

    def post(self, action: Action) -> None:
        """Have ``action`` called by the thread, after the actions that were posted before."""
        self._actions.put(action)
        if self._drained:
            self._drain()

    def submit(self, call: TaskCall) -> None:
        """Carry out a call of a function."""
        self.post(partial(self._accept, call))

    def cancelled(self, call: TaskCall) -> None:
        """A call's future was cancelled before it began."""
        self.post(partial(self._withdraw, call))

    def add_actor(self, actor: ActorLife) -> None:
        """Start an actor as soon as there is room for it."""
        self.post(partial(self._add_actor, actor))

    def shutdown(self, *, cancel: bool, kill: bool) -> None:
        """Accept no more calls; end when all are done, or at once."""
        self.post(partial(self._shutdown, cancel, kill))

    def call_regularly(self, check: Callable[[], float]) -> None:
        """Have ``check`` called now and then: it returns in how many seconds to call it again; below 0: never."""
        self.post(partial(self._checks.__setitem__, check, None))

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
                del action  # while this thread waits, it keeps nothing alive
                pause = None if self._ended else self._advance()
            except BaseException as error:  # whoever waits must learn that there will be no result
                self._end(error)
                raise

    def _advance(self) -> float | None:
        """Start what may start; return how many seconds to wait for the next action at most."""
        for key, seat in self.admission.ready():
            if isinstance(key, TaskCall):
                self._start(key, seat)
            else:
                key.start(seat)  # type: ignore[attr-defined]
        if self._closing and not self._calls and not any(actor.busy for actor in self._actors):
            self._end()
            return None
        pauses = [self.workers.end_surplus(), self._warn_if_blocked()]
        for check in list(self._checks):
            pauses.append(pause := check())
            if pause < 0:
                del self._checks[check]
        return min((pause for pause in pauses if pause is not None and pause >= 0), default=None)

    def _warn_if_blocked(self) -> float | None:
        """Warn, once, of a request that waits for what only actors have: it may wait forever."""
        needs = None if self._warned else self.admission.blocked_by_actors()
        if needs is None:
            self._blocked_since = None
            return None
        now = time.monotonic()
        self._blocked_since = self._blocked_since or now
        if now - self._blocked_since < WARN_AFTER:
            return WARN_AFTER
        self._warned = True
        with contextlib.suppress(Warning):  # where warnings are errors, this thread must go on
            warn(
                f"A call or actor that needs {needs} waits for what actors hold, and nothing else runs: drop the "
                "handles of actors that are not needed any more.",
            )
        return None

    # ------------------------------------------------------------ calls of functions

    def _accept(self, call: TaskCall) -> None:
        self._calls[call] = None
        if self._closing:
            self._remove(call)
            call.fail(closed())
            return
        call.wait_for_arguments(partial(self.post, partial(self._argument_done, call)))
        if not call.pending:
            self._request(call)

    def _argument_done(self, call: TaskCall) -> None:
        call.pending -= 1
        if not call.pending and call in self._calls:
            self._request(call)

    def _request(self, call: TaskCall) -> None:
        try:
            call.link_arguments()
        except BaseException as error:
            self._remove(call)
            call.fail(error)
            return
        call.requested = True
        self.admission.request(call, call.needs)

    def _withdraw(self, call: TaskCall) -> None:
        if call in self._calls and not call.begun:
            if call.requested:
                self.admission.withdraw(call)
            self._remove(call)

    def _start(self, call: TaskCall, seat: Seat) -> None:
        if not call.begin():
            self.admission.release(call)
            self._remove(call)
            return
        call.requested = False
        kind = self.workers.kind(call.threads, seat, call.needs)
        try:
            self._send(call, kind, self.workers.acquire(kind))
        except Exception as error:
            self._fail(call, None, error)

    def _send(self, call: TaskCall, kind: WorkerKind, worker: TaskWorker) -> None:
        try:
            answer = worker.submit("run", call.stored, call.label)
        except WorkerDied as error:  # one after another ended before it could work
            self._fail(call, worker, CallLost(f"{call.label} found no worker: {error}"))
            return
        except HeadraceError as error:  # such as a cluster that has no place for it
            self._fail(call, worker, error)
            return
        answer.add_done_callback(lambda done: self.post(partial(self._answered, call, kind, worker, done)))

    def _answered(self, call: TaskCall, kind: WorkerKind, worker: TaskWorker, answer: Future[Any]) -> None:
        error = answer.exception()
        if isinstance(error, WorkerDied) and not self._ended:
            call.deaths += not isinstance(error, (NeverReady, NodeLost))
            if call.may_be_tried_again:
                self._send(call, kind, worker)
                return
            self._fail(call, worker, lost(call, error))
            return
        self.workers.release(kind, worker)
        self.admission.release(call)
        self._remove(call)
        if error is None:
            call.succeed(self.store.add_packed(answer.result()))
        else:
            call.fail(restored_error(error))

    def _fail(self, call: TaskCall, worker: TaskWorker | None, error: BaseException) -> None:
        if worker is not None:
            self.workers.end(worker, kill=True)
        self.admission.release(call)
        self._remove(call)
        call.fail(error)

    def _remove(self, call: TaskCall) -> None:
        self._calls.pop(call, None)
        call.release()

    # ------------------------------------------------------------ actors

    def _add_actor(self, actor: ActorLife) -> None:
        if self._closing:
            actor.end(closed())
            return
        self._actors[actor] = None
        self.admission.request(actor, actor.needs, for_actor=True)

    def remove_actor(self, actor: ActorLife, *, admitted: bool) -> None:
        """An actor has ended: release what it had. For the thread itself."""
        if self._actors.pop(actor, _MISSING) is _MISSING:
            return
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
            for actor in list(self._actors):
                actor.cancel_waiting()
        if kill:
            self._end(closed())

    def _end(self, error: BaseException | None = None) -> None:
        """End every worker; fail what is not over with ``error``."""
        self._ended = self._closing = True
        self.workers.close()
        self.engine.close(kill=error is not None)
        failure = error if isinstance(error, ExecutorClosed) or error is None else _defect(error)
        for call in list(self._calls):
            call.fail(failure or closed())
        for actor in list(self._actors):
            actor.end(failure or closed())
        self._calls.clear()
        self._actors.clear()
        self._checks.clear()
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


_MISSING: Any = object()


def _nothing() -> None:
    """Nothing was posted."""


def closed() -> ExecutorClosed:
    """Return the error for calls after the end."""
    return ExecutorClosed("The executor is shut down: it cannot take calls any more.")


def lost(call: TaskCall, error: BaseException) -> CallLost:
    """Return the error for a call that ended every worker that tried it."""
    times = "once" if call.deaths == 1 else f"{call.deaths} times"
    return CallLost(
        f"{call.label} ended its worker {times}: {error}. It is not tried again (max_retries={call.max_retries})."
    )


def _defect(error: BaseException) -> EngineError:
    return EngineError(
        f"The thread of the executor failed: {type(error).__name__}: {error}. This is a defect of Headrace."
    )
