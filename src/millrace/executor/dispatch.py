"""The one thread that decides what runs where. It owns all state; whoever else wants something leaves it a note."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.core.devices import Seat
from millrace.core.warn import warn
from millrace.errors import (
    CallLost,
    EngineError,
    ExecutorClosed,
    MillraceError,
    NeverReady,
    NodeLost,
    WorkerDied,
)
from millrace.executor.admission import Admission
from millrace.executor.calls import Call
from millrace.executor.crew import Crew, Kind
from millrace.executor.ground import Ground, Worker
from millrace.executor.hosted import revived

if TYPE_CHECKING:
    from millrace.engines.kept import Keeper
    from millrace.executor.actor_life import ActorLife

Act = Callable[[], None]

BLOCKED = 5.0  # seconds after which a request for what only actors have is worth a warning


class Dispatcher:
    """Admits calls, sends them to workers, and takes what they return; keeps actors alive."""

    def __init__(
        self,
        engine: Ground,
        keeper: Keeper,
        admission: Admission,
        crew: Crew,
        notes: queue.SimpleQueue[Act],
    ) -> None:
        self.engine = engine
        self.keeper = keeper
        self.admission = admission
        self.crew = crew
        self._notes = notes
        self._calls: dict[Call, None] = {}  # every call of a function that is not over
        self._actors: dict[ActorLife, None] = {}
        self._watched: dict[Callable[[], float], None] = {}
        self._closing = False
        self._ended = False
        self._drained = False
        self._blocked_since: float | None = None
        self._warned = False
        self.thread = threading.Thread(target=self._run, name="millrace-executor", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------ from any thread

    def post(self, act: Act) -> None:
        """Have ``act`` called by the thread, after what was posted before."""
        self._notes.put(act)
        if self._drained:
            self._drain()

    def submit(self, call: Call) -> None:
        """Carry out a call of a function."""
        self.post(partial(self._accept, call))

    def cancelled(self, call: Call) -> None:
        """A call's future was cancelled before it began."""
        self.post(partial(self._withdraw, call))

    def employ(self, actor: ActorLife) -> None:
        """Start an actor as soon as there is room for it."""
        self.post(partial(self._employ, actor))

    def shutdown(self, *, cancel: bool, kill: bool) -> None:
        """Take no more; end when all is done, or at once."""
        self.post(partial(self._shutdown, cancel, kill))

    def watch(self, look: Callable[[], float]) -> None:
        """Have ``look`` called now and then: it returns after how many seconds; below 0: not any more."""
        self.post(partial(self._watched.__setitem__, look, None))

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        pause: float | None = None
        while not self._ended:
            try:
                act = self._notes.get(timeout=pause)
            except queue.Empty:
                act = _nothing
            try:
                act()
                del act  # while this thread waits, it keeps nothing from being let go of
                pause = None if self._ended else self._advance()
            except BaseException as error:  # whoever waits must learn that nothing will come
                self._end(error)
                raise

    def _advance(self) -> float | None:
        """Start what may start; return how many seconds to wait for news at most."""
        for key, seat in self.admission.ready():
            if isinstance(key, Call):
                self._start(key, seat)
            else:
                key.start(seat)  # type: ignore[attr-defined]
        if self._closing and not self._calls and not any(actor.busy for actor in self._actors):
            self._end()
            return None
        pauses = [self.crew.sweep(), self._look_for_blocked()]
        for look in list(self._watched):
            pauses.append(pause := look())
            if pause < 0:
                del self._watched[look]
        return min((pause for pause in pauses if pause is not None and pause >= 0), default=None)

    def _look_for_blocked(self) -> float | None:
        """Warn, once, of a request that waits for what only actors have: nothing may ever happen."""
        needs = None if self._warned else self.admission.blocked_by_actors()
        if needs is None:
            self._blocked_since = None
            return None
        now = time.monotonic()
        self._blocked_since = self._blocked_since or now
        if now - self._blocked_since < BLOCKED:
            return BLOCKED
        self._warned = True
        with contextlib.suppress(Warning):  # somebody has warnings raised; this thread must go on
            warn(
                f"A call or actor that needs {needs} waits for what actors hold, and nothing else runs: let go of "
                "actors that are not needed any more.",
            )
        return None

    # ------------------------------------------------------------ calls of functions

    def _accept(self, call: Call) -> None:
        self._calls[call] = None
        if self._closing:
            self._over(call)
            call.fail(closed())
            return
        call.wait_for_others(partial(self.post, partial(self._one_less, call)))
        if not call.pending:
            self._ask(call)

    def _one_less(self, call: Call) -> None:
        call.pending -= 1
        if not call.pending and call in self._calls:
            self._ask(call)

    def _ask(self, call: Call) -> None:
        try:
            call.link()
        except BaseException as error:
            self._over(call)
            call.fail(error)
            return
        call.asked = True
        self.admission.ask(call, call.needs)

    def _withdraw(self, call: Call) -> None:
        if call in self._calls and not call.begun:
            if call.asked:
                self.admission.withdraw(call)
            self._over(call)

    def _start(self, call: Call, seat: Seat) -> None:
        if not call.begin():
            self.admission.give(call)
            self._over(call)
            return
        call.asked = False
        kind = self.crew.kind(call.threads, seat, call.needs)
        try:
            self._send(call, kind, self.crew.take(kind))
        except Exception as error:
            self._give_up(call, None, error)

    def _send(self, call: Call, kind: Kind, worker: Worker) -> None:
        try:
            answer = worker.submit("run", call.kept, call.label)
        except WorkerDied as error:  # one after another ended before it could work
            self._give_up(call, worker, CallLost(f"{call.label} found no worker: {error}"))
            return
        except MillraceError as error:  # such as a cluster that has no place for it
            self._give_up(call, worker, error)
            return
        answer.add_done_callback(lambda done: self.post(partial(self._answered, call, kind, worker, done)))

    def _answered(self, call: Call, kind: Kind, worker: Worker, answer: Future[Any]) -> None:
        error = answer.exception()
        if isinstance(error, WorkerDied) and not self._ended:
            call.deaths += not isinstance(error, (NeverReady, NodeLost))
            if call.may_be_tried_again:
                self._send(call, kind, worker)
                return
            self._give_up(call, worker, lost(call, error))
            return
        self.crew.give(kind, worker)
        self.admission.give(call)
        self._over(call)
        if error is None:
            call.succeed(self.keeper.take(answer.result()))
        else:
            call.fail(revived(error))

    def _give_up(self, call: Call, worker: Worker | None, error: BaseException) -> None:
        if worker is not None:
            self.crew.end(worker, kill=True)
        self.admission.give(call)
        self._over(call)
        call.fail(error)

    def _over(self, call: Call) -> None:
        self._calls.pop(call, None)
        call.let_go()

    # ------------------------------------------------------------ actors

    def _employ(self, actor: ActorLife) -> None:
        if self._closing:
            actor.end(closed())
            return
        self._actors[actor] = None
        self.admission.ask(actor, actor.needs, stays=True)

    def dismiss(self, actor: ActorLife, *, admitted: bool) -> None:
        """An actor is over: give back what it had. For the thread itself."""
        if self._actors.pop(actor, _NOBODY) is _NOBODY:
            return
        if admitted:
            self.admission.give(actor)
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
        self.crew.close()
        self.engine.close(kill=error is not None)
        told = error if isinstance(error, ExecutorClosed) or error is None else _broken(error)
        for call in list(self._calls):
            call.fail(told or closed())
        for actor in list(self._actors):
            actor.end(told or closed())
        self._calls.clear()
        self._actors.clear()
        self._watched.clear()
        self.keeper.close()
        self._drain()
        self._drained = True
        self._drain()

    def _drain(self) -> None:
        """Tell those who came too late."""
        while True:
            try:
                act = self._notes.get_nowait()
            except queue.Empty:
                return
            act()


_NOBODY: Any = object()


def _nothing() -> None:
    """Nothing was posted: time has passed."""


def closed() -> ExecutorClosed:
    """Return the error for who comes too late."""
    return ExecutorClosed("The executor is shut down: it cannot take calls any more.")


def lost(call: Call, error: BaseException) -> CallLost:
    """Say that a call ended every worker that tried it."""
    times = "once" if call.deaths == 1 else f"{call.deaths} times"
    return CallLost(
        f"{call.label} ended its worker {times}: {error}. It is not tried again (max_retries={call.max_retries})."
    )


def _broken(error: BaseException) -> EngineError:
    return EngineError(
        f"The thread of the executor failed: {type(error).__name__}: {error}. This is a defect of ours."
    )
