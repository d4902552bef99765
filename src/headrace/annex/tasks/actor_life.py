"""One actor: an object in a worker of its own, made there, whose methods run in the order of the calls."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.annex.tasks.admission import Needs
from headrace.annex.tasks.calls import TaskCall, only_here, results_of
from headrace.annex.tasks.hosting.task_host import ActorLeft, CallStopped, NoObject
from headrace.annex.tasks.hosting.worker_core import IN_CONSTRUCTOR, restored_error
from headrace.core.engine_ports import Seat
from headrace.errors import (
    ActorDied,
    ArgumentError,
    CallCancelled,
    HeadraceError,
    NeverReady,
    WorkerDied,
)

if TYPE_CHECKING:
    from headrace.engines.local.pool import LocalPool
    from headrace.engines.object_store import ObjectStore

MAX_TRIES = 3  # deaths in a row in the constructor
MOST_SENT = (
    16  # calls of an actor that runs one after another: those behind the first do not wait for the driver
)


class ActorLife:
    """What the dispatcher knows of an actor. Its methods are for its thread, but for the first few.

    ``dispatcher`` is a ``Dispatcher``. ``construction`` is the call of the constructor. It is repeated in the worker
    that replaces one that died, up to ``restarts`` times (-1: without limit).
    """

    def __init__(
        self, dispatcher: Any, construction: TaskCall, needs: Needs, threads: int, restarts: int
    ) -> None:
        self.needs = needs
        self._dispatcher = dispatcher
        self._construction = construction
        self._threads = threads
        self._restarts = restarts
        self._waiting: deque[TaskCall] = deque()
        self._running: dict[TaskCall, None] = {}
        self._orders = itertools.count()
        self.concurrency = 1  # how many calls may run at the same time
        self.said_concurrency: int | None = None
        self._worker: LocalPool | None = None
        self._admitted = False
        self._constructed = self._was_made = False
        self._ended_by: BaseException | None = None
        self._without_handles = False
        self._failed_constructions = 0
        self._process = -1
        self.handle: Callable[[], Any] | None = None
        self._check_process = only_here()

    # ------------------------------------------------------------ from any thread

    @property
    def store(self) -> ObjectStore:
        """Where results are kept."""
        return self._dispatcher.store  # type: ignore[no-any-return]

    def adopt(self, call: TaskCall) -> Any:
        """Call a method, after those that were called before; return what the user gets for it."""
        self._check_process()
        call.future.on_cancel(partial(self.cancelled, call), partial(self.stop, call))
        self._dispatcher.post(partial(self._accept, call))
        return results_of(call)

    def stop(self, call: TaskCall, force: bool, recursive: bool) -> None:
        """Cancel a call, though it may have begun."""
        if force:
            raise ArgumentError(
                f"{call.label}: a method cannot be cancelled by force; ray.kill ends the actor."
            )
        self._dispatcher.post(partial(self._stop, call))

    def handles_collected(self) -> None:
        """The last handle was collected: the calls that were made are still carried out."""
        self._dispatcher.post(self._handles_collected)

    def cancelled(self, call: TaskCall) -> None:
        """A call was cancelled before it began."""
        self._dispatcher.post(partial(self._remove, call))

    def kill(self, *, no_restart: bool = True) -> None:
        """End the actor at once; without ``no_restart`` it begins again, if it may."""
        if no_restart:
            error = ActorDied(f"{self._construction.label} was killed on request.")
            self._dispatcher.post(partial(self.end, error, kill=True))
        else:
            self._dispatcher.post(self._kill)

    @property
    def alive(self) -> bool:
        """Whether it accepts calls, as far as is known."""
        return self._ended_by is None

    # ------------------------------------------------------------ from the dispatcher

    @property
    def busy(self) -> bool:
        """Whether there are calls that are not done."""
        return bool(self._waiting or self._running)

    def start(self, seat: Seat) -> None:
        """It was admitted: start the worker, and construct the object."""
        self._admitted = True
        if self._without_handles and not self.busy:
            self.end(_no_handles(self._construction.label))
            return
        workers = self._dispatcher.workers
        try:
            self._worker = workers.start(self._construction.label, workers.kind(self._threads, seat))
        except Exception as error:
            self.end(error)
            return
        if not self._construction.pending:
            self._construct()

    def end(self, error: BaseException, *, kill: bool = False) -> None:
        """Fail the calls that wait, and all that are to come, with ``error``; release what it had."""
        if self._ended_by is not None:
            return
        self._ended_by = error
        calls = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        if self._worker is not None:
            self._dispatcher.workers.end(self._worker, kill=kill or bool(calls) or not self._constructed)
        self._dispatcher.remove_actor(self, admitted=self._admitted)
        for call in calls:
            call.fail(error)

    def cancel_waiting(self) -> None:
        """Cancel the calls that have not begun."""
        for call in list(self._waiting):
            if call.future.cancel() or call.future.cancelled():
                self._remove(call)

    # ------------------------------------------------------------ the object

    def wait_for_arguments(self) -> None:
        """Wait for the futures among the constructor's arguments."""
        construction = self._construction
        construction.wait_for_arguments(partial(self._dispatcher.post, self._construction_argument_done))

    def _construction_argument_done(self) -> None:
        self._construction.pending -= 1
        if not self._construction.pending and self._worker is not None and self._ended_by is None:
            self._construct()

    def _construct(self) -> None:
        try:
            self._construction.link_arguments()
        except BaseException as error:
            self.end(error)
            return
        self._constructed = False
        assert self._worker is not None
        self._send(
            "construct", self._construction, self._construct_answered, self.said_concurrency, self._was_made
        )

    def _construct_answered(self, answer: Future[Any]) -> None:
        error = answer.exception()
        if self._ended_by is not None:
            return
        if error is None:
            self._constructed = self._was_made = True
            self._failed_constructions = 0
            self._send_next()
        elif isinstance(error, ActorLeft):
            self.end(ActorDied(f"{self._construction.label} ended itself in its constructor."))
        elif isinstance(error, WorkerDied):
            self._failed_constructions += 1
            if self._failed_constructions < MAX_TRIES:
                self._construct()
            else:
                self.end(
                    ActorDied(
                        f"{self._construction.label} ended its worker {MAX_TRIES} times, the last time: {error}."
                    )
                )
        else:
            raised = restored_error(error)
            with contextlib.suppress(AttributeError):
                setattr(raised, IN_CONSTRUCTOR, True)
            self.end(raised)

    # ------------------------------------------------------------ calls

    def _accept(self, call: TaskCall) -> None:
        if self._ended_by is not None:
            call.fail(self._ended_by)
            return
        call.order = next(self._orders)
        self._waiting.append(call)
        call.wait_for_arguments(partial(self._dispatcher.post, partial(self._argument_done, call)))
        self._send_next()

    def _argument_done(self, call: TaskCall) -> None:
        call.pending -= 1
        self._send_next()

    def _send_next(self) -> None:
        """Send the first calls that wait, if their arguments are there."""
        most = MOST_SENT if self.concurrency == 1 else self.concurrency
        while self._constructed and len(self._running) < most and self._waiting:
            if self._waiting[0].pending:
                break
            call = self._waiting.popleft()
            try:
                call.link_arguments()
            except BaseException as error:
                call.fail(error)
                continue
            if call.begin():
                self._running[call] = None
                self._send("call", call, partial(self._answered, call), call.returns)
        if self._without_handles and not self.busy:
            self.end(_no_handles(self._construction.label))

    def _wait_again(self, call: TaskCall) -> None:
        """A call waits again, where it did."""
        before = itertools.takewhile(lambda waiting: waiting.order < call.order, self._waiting)
        self._waiting.insert(sum(1 for _ in before), call)

    def _answered(self, call: TaskCall, answer: Future[Any]) -> None:
        error = answer.exception()
        self._dispatcher.requests.running.pop(call.stored.number, None)
        if self._ended_by is not None:
            return
        if call not in self._running:
            return
        del self._running[call]
        if isinstance(error, ActorLeft):
            left = ActorDied(
                f"{self._construction.label} has ended its own process, by sys.exit() or exit_actor()."
            )
            self.end(left)
            call.fail(left)
        elif isinstance(error, (CallStopped, CancelledError)):
            call.fail(CallCancelled(f"{call.label} was cancelled."))
        elif isinstance(error, NoObject):
            self._restart(call, "it ended between two calls")
        elif isinstance(error, WorkerDied):
            # One after another: the first one is to blame, and the others have not begun.
            if self._constructed or self.concurrency > 1:
                call.deaths += not isinstance(error, NeverReady)
            self._restart(call, str(error))
        elif error is not None:
            call.fail(restored_error(error))
        else:
            call.succeed(self._dispatcher.store.add_packed(answer.result()))
        self._send_next()

    def _restart(self, call: TaskCall, why: str) -> None:
        """The worker died: construct the object again in its replacement, if allowed, and try the call again."""
        died = ActorDied(f"{call.label}: the actor's process ended: {why}.")
        if not self._constructed and self._ended_by is None:
            self._again(call, why)  # another call has found that out
            return
        if not self._restarts:
            self._running[call] = None
            self.end(died)
            return
        self._restarts -= self._restarts > 0
        self._constructed = False
        self._again(call, why)
        self._construct()

    def _again(self, call: TaskCall, why: str) -> None:
        """Try a call again on the object that is made anew, or let it fail."""
        if call.may_be_tried_again:
            self._wait_again(call)
        else:
            times = "once" if call.deaths == 1 else f"{call.deaths} times"
            call.fail(ActorDied(f"{call.label} ended its actor's process {times}: {why}."))

    def _kill(self) -> None:
        if self._ended_by is None and self._worker is not None and self._process >= 0:
            self._worker.kill(self._process, "it was killed on request")

    def _stop(self, call: TaskCall) -> None:
        if call in self._running and self._worker is not None:
            self._worker.feed(self._process, "cancel", call.stored.number)
        elif call in self._waiting and call.future.cancel():
            self._remove(call)

    def _send(self, method: str, call: TaskCall, then: Any, *said: Any) -> None:
        assert self._worker is not None
        if method == "call":
            call.worker, call.actor = self._worker, self.handle
            self._dispatcher.requests.running[call.stored.number] = call
        try:
            answer = self._worker.submit(method, call.stored, call.label, *said)
            self._process = answer.worker  # type: ignore[attr-defined]
        except WorkerDied as error:  # one after another ended before it could work
            self.end(ActorDied(f"{call.label}: {error}"))
            return
        except HeadraceError as error:  # such as a cluster that has no place for it
            self.end(error)
            return
        answer.add_done_callback(partial(self._post_answer, then))

    def _post_answer(self, then: Callable[[Future[Any]], None], answer: Future[Any]) -> None:
        self._dispatcher.post(partial(then, answer))

    def _remove(self, call: TaskCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
            self._send_next()

    def _handles_collected(self) -> None:
        self._without_handles = True
        if self._ended_by is None and (self._constructed or not self._admitted):
            self._send_next()


def _no_handles(label: str) -> ActorDied:
    return ActorDied(f"{label} has ended: its last handle was collected.")
