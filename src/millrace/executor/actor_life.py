"""One actor: an object in a worker of its own, made there, whose methods run in the order of the calls."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.core.devices import Seat
from millrace.errors import ActorDied, MillraceError, NeverReady, NodeLost, WorkerDied
from millrace.executor.admission import Needs
from millrace.executor.calls import Call
from millrace.executor.ground import Worker
from millrace.executor.hosted import NoObject, revived

if TYPE_CHECKING:
    from millrace.executor.dispatch import Dispatcher

TRIES = 3  # deaths in a row in the constructor


class ActorLife:
    """What the dispatcher knows of an actor. All methods are for its thread, but for ``post`` and ``dismissed``.

    ``making`` is the call of the constructor; it is made again in the place of a worker that died, up to
    ``max_restarts`` times (-1: as often as need be).
    """

    def __init__(
        self, dispatcher: Dispatcher, making: Call, needs: Needs, threads: int, restarts: int
    ) -> None:
        self.needs = needs
        self._dispatcher = dispatcher
        self._making = making
        self._threads = threads
        self._restarts = restarts
        self._waiting: deque[Call] = deque()
        self._running: Call | None = None
        self._worker: Worker | None = None
        self._admitted = False
        self._made = False
        self._over: BaseException | None = None
        self._unwanted = False
        self._failed_makings = 0

    # ------------------------------------------------------------ from any thread

    def post(self, call: Call) -> None:
        """Call a method, after those that were called before."""
        self._dispatcher.post(partial(self._accept, call))

    def dismissed(self) -> None:
        """Nobody has the handle any more: what was called is still done."""
        self._dispatcher.post(self._dismissed)

    def cancelled(self, call: Call) -> None:
        """A call was cancelled before it began."""
        self._dispatcher.post(partial(self._forget, call))

    def kill(self) -> None:
        """End the actor at once."""
        self._dispatcher.post(partial(self.end, ActorDied(f"{self._making.label} was killed on demand.")))

    @property
    def alive(self) -> bool:
        """Whether it takes calls, as far as is known."""
        return self._over is None

    # ------------------------------------------------------------ from the dispatcher

    @property
    def busy(self) -> bool:
        """Whether there are calls that are not over."""
        return bool(self._waiting or self._running)

    def start(self, seat: Seat) -> None:
        """There is room: start the worker, and make the object."""
        self._admitted = True
        if self._unwanted and not self.busy:
            self.end(_unwanted(self._making.label))
            return
        crew = self._dispatcher.crew
        try:
            self._worker = crew.start(self._making.label, crew.kind(self._threads, seat, self.needs))
        except Exception as error:
            self.end(error)
            return
        if not self._making.pending:
            self._make()

    def end(self, error: BaseException) -> None:
        """Fail what is waiting, and all that is to come, with ``error``; give back what it had."""
        if self._over is not None:
            return
        self._over = error
        calls = [*([self._running] if self._running else []), *self._waiting]
        self._running = None
        self._waiting.clear()
        if self._worker is not None:
            self._dispatcher.crew.end(self._worker, kill=bool(calls) or not self._made)
        self._dispatcher.dismiss(self, admitted=self._admitted)
        for call in calls:
            call.fail(error)

    def cancel_waiting(self) -> None:
        """Cancel the calls that have not begun."""
        for call in list(self._waiting):
            if call.future.cancel() or call.future.cancelled():
                self._forget(call)

    # ------------------------------------------------------------ making the object

    def prepare(self) -> None:
        """Wait for what the constructor's arguments wait for."""
        making = self._making
        making.wait_for_others(partial(self._dispatcher.post, self._argument_is_there))

    def _argument_is_there(self) -> None:
        self._making.pending -= 1
        if not self._making.pending and self._worker is not None and self._over is None:
            self._make()

    def _make(self) -> None:
        try:
            self._making.link()
        except BaseException as error:
            self.end(error)
            return
        self._made = False
        assert self._worker is not None
        self._ask("construct", self._making, self._was_made)

    def _was_made(self, answer: Future[Any]) -> None:
        error = answer.exception()
        if self._over is not None:
            return
        if error is None:
            self._made = True
            self._failed_makings = 0
            self._next()
        elif isinstance(error, WorkerDied):
            self._failed_makings += not isinstance(error, NodeLost)
            if self._failed_makings < TRIES:
                self._make()
            else:
                self.end(
                    ActorDied(f"{self._making.label} ended its worker {TRIES} times, the last time: {error}.")
                )
        else:
            self.end(revived(error))

    # ------------------------------------------------------------ calls

    def _accept(self, call: Call) -> None:
        if self._over is not None:
            call.fail(self._over)
            return
        self._waiting.append(call)
        call.wait_for_others(partial(self._dispatcher.post, partial(self._one_less, call)))
        self._next()

    def _one_less(self, call: Call) -> None:
        call.pending -= 1
        self._next()

    def _next(self) -> None:
        """Send the call whose turn it is, if all is there."""
        while self._made and self._running is None and self._waiting and not self._waiting[0].pending:
            call = self._waiting.popleft()
            try:
                call.link()
            except BaseException as error:
                call.fail(error)
                continue
            if call.begin():
                self._running = call
                self._ask("call", call, partial(self._answered, call))
        if self._unwanted and not self.busy:
            self.end(_unwanted(self._making.label))

    def _answered(self, call: Call, answer: Future[Any]) -> None:
        error = answer.exception()
        if self._over is not None or self._running is not call:
            return
        self._running = None
        if isinstance(error, NoObject):
            self._restart(call, "it ended while it had nothing to do")
        elif isinstance(error, WorkerDied):
            call.deaths += not isinstance(error, (NeverReady, NodeLost))
            self._restart(call, str(error))
        elif error is not None:
            call.fail(revived(error))
        else:
            call.succeed(self._dispatcher.keeper.take(answer.result()))
        self._next()

    def _restart(self, call: Call, why: str) -> None:
        """The worker died: make the object again in its replacement, if that may be, and try the call again."""
        died = ActorDied(f"{call.label}: the actor's process ended: {why}.")
        if not self._restarts:
            self._running = call
            self.end(died)
            return
        self._restarts -= self._restarts > 0
        if call.may_be_tried_again:
            self._waiting.appendleft(call)
        else:
            times = "once" if call.deaths == 1 else f"{call.deaths} times"
            call.fail(ActorDied(f"{call.label} ended its actor's process {times}: {why}."))
        self._make()

    def _ask(self, method: str, call: Call, then: Any) -> None:
        assert self._worker is not None
        try:
            answer = self._worker.submit(method, call.kept, call.label)
        except WorkerDied as error:  # one after another ended before it could work
            self.end(ActorDied(f"{call.label}: {error}"))
            return
        except MillraceError as error:  # such as a cluster that has no place for it
            self.end(error)
            return
        answer.add_done_callback(lambda done: self._dispatcher.post(partial(then, done)))

    def _forget(self, call: Call) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
            self._next()

    def _dismissed(self) -> None:
        self._unwanted = True
        if self._over is None and (self._made or not self._admitted):
            self._next()


def _unwanted(label: str) -> ActorDied:
    return ActorDied(f"{label} was let go of.")
