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

from headrace.annex.tasks.admission import Admission, BlockedRequests
from headrace.annex.tasks.calls import TaskCall, cancelled, closed, defect, lost
from headrace.annex.tasks.hosting.task_host import CallStopped
from headrace.annex.tasks.hosting.worker_core import restored_error
from headrace.annex.tasks.workers import ExecutorWorkers, WorkerKind
from headrace.core.engine_ports import Seat
from headrace.errors import (
    CallLost,
    ExecutorClosed,
    HeadraceError,
    NeverReady,
    WorkerDied,
)

if TYPE_CHECKING:
    from headrace.annex.tasks.actor_life import ActorLife
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
        self._calls: dict[TaskCall, None] = {}  # every call of a function that is not over
        self._actors: dict[ActorLife, None] = {}
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

    def submit(self, call: TaskCall) -> None:
        """Carry out a call of a function."""
        self.post(partial(self.accept, call))

    def stop(self, call: TaskCall, force: bool, recursive: bool) -> None:
        """Cancel a call, though it may have begun."""
        self.post(partial(self._stop, call, force, recursive))

    def cancelled(self, call: TaskCall) -> None:
        """A call's future was cancelled before it began."""
        self.post(partial(self._withdraw, call))

    def add_actor(self, actor: ActorLife) -> None:
        """Start an actor as soon as there is room for it."""
        self.post(partial(self._add_actor, actor))

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
        if self._closing and not self._calls and not any(actor.busy for actor in self._actors):
            self._end()
            return None
        pauses = (self.workers.end_surplus(), self._blocked.advance())
        return min((pause for pause in pauses if pause is not None), default=None)

    # ------------------------------------------------------------ calls of functions

    def has(self, call: TaskCall) -> bool:
        """Say whether this is a call of a function that is not over."""
        return call in self._calls

    def accept(self, call: TaskCall) -> None:
        """Carry out a call; in the dispatcher's thread."""
        self._calls[call] = None
        if self._closing and not call.depth:
            self.remove(call)
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
            self.remove(call)
            call.fail(error)
            return
        call.requested = True
        self.admission.request(call, call.needs, depth=call.depth)

    def _withdraw(self, call: TaskCall) -> None:
        if call in self._calls and not call.begun:
            if call.requested:
                self.admission.withdraw(call)
            self.remove(call)

    def _start(self, call: TaskCall, seat: Seat) -> None:
        if not call.begin():
            self.admission.release(call)
            self.remove(call)
            return
        call.requested = False
        kind = self.workers.kind(call.threads, seat)
        try:
            self._send(call, kind, self.workers.acquire(kind))
        except Exception as error:
            self._fail(call, None, error)

    def _send(self, call: TaskCall, kind: WorkerKind, worker: LocalPool) -> None:
        call.worker = worker
        self.requests.running[call.stored.number] = call
        try:
            answer = worker.submit("run", call.stored, call.label, call.returns)
            call.process = answer.worker  # type: ignore[attr-defined]
        except WorkerDied as error:  # one after another ended before it could work
            self._fail(call, worker, CallLost(f"{call.label} found no worker: {error}"))
            return
        except HeadraceError as error:
            self._fail(call, worker, error)
            return
        answered = partial(self._answered, call, kind, worker)
        answer.add_done_callback(lambda done: self.post(partial(answered, done)))

    def _answered(self, call: TaskCall, kind: WorkerKind, worker: LocalPool, answer: Future[Any]) -> None:
        error = answer.exception()
        self.admission.resume(call)
        if isinstance(error, WorkerDied) and not self._ended:
            self._died(call, kind, worker, error)
            return
        self.workers.release(kind, worker)
        self.admission.release(call)
        self.remove(call)
        if error is None:
            call.succeed(self.store.add_packed(answer.result()))
        elif isinstance(error, CallStopped):
            call.fail(cancelled(call))
        else:
            call.fail(restored_error(error))

    def _died(self, call: TaskCall, kind: WorkerKind, worker: LocalPool, error: WorkerDied) -> None:
        """The worker of a call died: it is tried again in the one that takes its place, or fails."""
        call.deaths += not isinstance(error, NeverReady)
        children, call.children = call.children, None
        for child in children or ():  # it will make them anew
            if not child.begun and not child.future.shared:
                child.future.cancel()
        if call.may_be_tried_again:
            self._send(call, kind, worker)
        else:
            self._fail(call, worker, cancelled(call) if call.stopping else lost(call, error))

    def _stop(self, call: TaskCall, force: bool, recursive: bool) -> None:
        for child in list(call.children or ()) if recursive else ():
            self._stop(child, force, recursive)
        if call not in self._calls or (not call.begun and call.future.cancel()):
            return
        call.stopping = True
        assert call.worker is not None
        if force:
            call.worker.kill(call.process, "it was cancelled")
        else:
            call.worker.feed(call.process, "cancel", call.stored.number)

    def _fail(self, call: TaskCall, worker: LocalPool | None, error: BaseException) -> None:
        if worker is not None:
            self.workers.end(worker, kill=True)
        self.admission.release(call)
        self.remove(call)
        call.fail(error)

    def remove(self, call: TaskCall) -> None:
        """A call is over; in the dispatcher's thread."""
        self._calls.pop(call, None)
        self.requests.running.pop(call.stored.number, None)
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
        failure = error if isinstance(error, ExecutorClosed) or error is None else defect(error)
        for call in list(self._calls):
            call.fail(failure or closed())
        for actor in list(self._actors):
            actor.end(failure or closed())
        self._calls.clear()
        self._actors.clear()
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


_MISSING: Any = object()


def _nothing() -> None:
    """Nothing was posted."""
