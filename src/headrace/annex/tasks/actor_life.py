"""One actor: an object in a worker of its own, made there, whose methods run in the order of the calls."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.annex.tasks.admission import Needs
from headrace.annex.tasks.calls import ActorOrder, TaskCall
from headrace.annex.tasks.hosting.task_host import ActorLeft, NoObject
from headrace.annex.tasks.hosting.worker_core import IN_CONSTRUCTOR, restored_error
from headrace.core.engine_ports import Seat
from headrace.errors import ActorDied, NeverReady, WorkerDied

if TYPE_CHECKING:
    from headrace.engines.local.pool import LocalPool

MAX_TRIES = 3  # deaths in a row in the constructor
MOST_SENT = (
    16  # calls of an actor that runs one after another: those behind the first do not wait for the driver
)


class ActorLife:
    """What the dispatcher knows of an actor; its methods are for its thread, but for the first few.

    ``dispatcher`` is a ``Dispatcher``, ``construction`` the call of the constructor. That is repeated in the worker
    that replaces one that died, as often as ``order`` says.
    """

    def __init__(self, dispatcher: Any, construction: TaskCall, order: ActorOrder, needs: Needs) -> None:
        self.needs = needs
        self.construction = construction
        self.ended_by: BaseException | None = None
        self.handle: Callable[[], Any]  # set when it is made
        self._dispatcher = dispatcher
        self._restarts = order.restarts
        self._concurrency = order.concurrency
        self._one_by_one = (order.concurrency or (1000 if order.is_async else 1)) == 1
        self._most = MOST_SENT if self._one_by_one else order.concurrency or 1000
        self._waiting: deque[TaskCall] = deque()
        self._running: dict[TaskCall, None] = {}
        self._orders = itertools.count()
        self._worker: LocalPool | None = None
        self._admitted = False
        self._constructing = self._constructed = self._was_made = False
        self._without_handles = False
        self._failed_constructions = 0
        construction.life, construction.method = self, "construct"

    # ------------------------------------------------------------ from any thread

    @property
    def store(self) -> Any:
        """Where results are kept."""
        return self._dispatcher.store

    @property
    def alive(self) -> bool:
        """Whether it accepts calls, as far as is known."""
        return self.ended_by is None

    def handles_collected(self) -> None:
        """The last handle was collected: the calls that were made are still carried out."""
        self._dispatcher.post(self._handles_collected)

    def kill(self, *, no_restart: bool = True) -> None:
        """End the actor at once; without ``no_restart`` it begins again, if it may."""
        if no_restart:
            error = ActorDied(f"{self.construction.label} was killed on request.")
            self._dispatcher.post(partial(self.end, error, kill=True))
        else:
            self._dispatcher.post(self._kill)

    # ------------------------------------------------------------ from the dispatcher

    def start(self, seat: Seat) -> None:
        """It was admitted: start the worker, and construct the object."""
        self._admitted = True
        workers, made = self._dispatcher.workers, self.construction
        if self._is_done:
            self.end(self._no_handles())
            return
        try:
            self._worker = workers.start(made.label, workers.kind(made.threads, seat))
        except Exception as error:
            self.end(error)
            return
        self.go_on()

    def end(self, error: BaseException, *, kill: bool = False) -> None:
        """Fail the calls that wait, and all that are to come, with ``error``; release what it had."""
        if self.ended_by is not None:
            return
        self.ended_by = error
        calls = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        if self._worker is not None:
            self._dispatcher.workers.end(self._worker, kill=kill or bool(calls) or not self._constructed)
        self._dispatcher.remove_actor(self, admitted=self._admitted)
        for call in calls:
            self._dispatcher.fail(call, error)

    def add(self, call: TaskCall) -> None:
        """Take in a call, after those that it has."""
        call.order, call.method = next(self._orders), "call"
        self._waiting.append(call)

    def withdraw(self, call: TaskCall) -> None:
        """A call that waits was cancelled."""
        if call in self._waiting:
            self._waiting.remove(call)
            self.go_on()

    def go_on(self) -> None:
        """Construct the object, or send the first calls that wait, as far as their arguments are there."""
        if self.ended_by is not None or self._constructing:
            return
        if self._worker is not None and not self._constructed and not self.construction.pending:
            self._construct()
            return
        while self._constructed and len(self._running) < self._most and self._waiting:
            if self._waiting[0].pending:
                break
            call = self._waiting.popleft()
            try:
                call.link_arguments()
            except BaseException as error:
                self._dispatcher.fail(call, error)
                continue
            if call.begin():
                self._running[call] = None
                assert self._worker is not None
                self._dispatcher.send(call, self._worker)
        if self._is_done:
            self.end(self._no_handles())

    def answered(self, call: TaskCall, error: BaseException | None) -> bool:
        """A call was answered; return whether nothing is left to do about it."""
        if call is self.construction:
            self._construct_answered(error)
            return True
        if call not in self._running:  # the actor has ended
            return True
        del self._running[call]
        if isinstance(error, ActorLeft):
            left = ActorDied(
                f"{self.construction.label} has ended its own process, by sys.exit() or exit_actor()."
            )
            self.end(left)
            self._dispatcher.fail(call, left)
        elif isinstance(error, NoObject):
            self._restart(call, "it ended between two calls")
        elif isinstance(error, WorkerDied):
            # One after another: the first one is to blame, and the others have not begun.
            if self._constructed or not self._one_by_one:
                call.deaths += not isinstance(error, NeverReady)
            self._restart(call, str(error))
        else:
            return False
        self.go_on()
        return True

    # ------------------------------------------------------------ the object

    @property
    def _is_done(self) -> bool:
        """Whether nobody can call it any more, and all that was called is done."""
        return self._without_handles and not self._waiting and not self._running

    def _no_handles(self) -> ActorDied:
        return ActorDied(f"{self.construction.label} has ended: its last handle was collected.")

    def _construct(self) -> None:
        made = self.construction
        try:
            made.link_arguments()
        except BaseException as error:
            self.end(error)
            return
        self._constructing = True
        made.said = self._concurrency, self._was_made
        assert self._worker is not None
        self._dispatcher.send(made, self._worker)

    def _construct_answered(self, error: BaseException | None) -> None:
        self._constructing, label = False, self.construction.label
        if error is None:
            self._constructed = self._was_made = True
            self._failed_constructions = 0
        elif isinstance(error, ActorLeft):
            self.end(ActorDied(f"{label} ended itself in its constructor."))
        elif isinstance(error, WorkerDied):
            self._failed_constructions += 1
            if self._failed_constructions == MAX_TRIES:
                self.end(ActorDied(f"{label} ended its worker {MAX_TRIES} times, the last time: {error}."))
        else:
            raised = restored_error(error)
            with contextlib.suppress(AttributeError):
                setattr(raised, IN_CONSTRUCTOR, True)
            self.end(raised)
        self.go_on()

    def _restart(self, call: TaskCall, why: str) -> None:
        """The worker died: construct the object again in its replacement, if allowed, and try the call again."""
        if self._constructed:  # else another call has found that out
            if not self._restarts:
                self._running[call] = None
                self.end(ActorDied(f"{call.label}: the actor's process ended: {why}."))
                return
            self._restarts -= self._restarts > 0
            self._constructed = False
        if call.may_be_tried_again:  # where it was
            self._waiting = deque(sorted([*self._waiting, call], key=lambda each: each.order))
        else:
            times = "once" if call.deaths == 1 else f"{call.deaths} times"
            died = ActorDied(f"{call.label} ended its actor's process {times}: {why}.")
            self._dispatcher.fail(call, died)

    def _kill(self) -> None:
        if self.ended_by is None and self._worker is not None and self.construction.process >= 0:
            self._worker.kill(self.construction.process, "it was killed on request")

    def _handles_collected(self) -> None:
        self._without_handles = True
        self.go_on()
