"""What calls in workers ask of the driver: further calls, values, actors, and to wait for them.

All of it happens in the dispatcher's thread. ``hosting/worker_core.py`` has the other side.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from headrace.annex.tasks.calls import ActorOrder, TaskCall, TaskOrder, Wait
from headrace.annex.tasks.futures import CallFuture, Pieces
from headrace.annex.tasks.hosting.worker_core import packed_error
from headrace.errors import ActorDied, CallCancelled, ExecutorClosed, HeadraceError


class WorkerLine:
    """One worker's way to the requests."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.pool: Any = None  # known once the worker is started

    def on_note(self, worker: int, message: Any, *packed: Any) -> None:
        """A worker says something, maybe with a value; in the thread that listens."""
        self._requests.post(partial(self._requests.handle, self, worker, message, *packed))

    def on_end(self, worker: int) -> None:
        """The worker has ended."""
        self._requests.post(partial(self._requests.forget, worker))


class Requests:
    """Carries out what workers ask for, and keeps what they have references to. ``core``: see ``Core``."""

    def __init__(self, core: Any, post: Callable[[Callable[[], None]], None]) -> None:
        self.post = post
        self.running: dict[int, TaskCall] = {}  # calls in workers, by the numbers of what was sent
        self.closed = False
        self._core = core
        self._held: dict[int, dict[int, list[Any]]] = {}  # by worker and number: what, and how often
        self._waits: dict[tuple[int, int], Wait] = {}  # by worker and token

    def handle(self, line: WorkerLine, worker: int, message: tuple[Any, ...], *packed: Any) -> None:
        """Do what a worker asks for."""
        if self.closed:
            for each in packed:
                each.close()
            return
        kind, *args = (*message, *packed)
        if kind in ("wait", "ask"):
            getattr(self, f"_{kind}")(line, worker, *args)
        else:
            getattr(self, f"_{kind.replace(' ', '_')}")(worker, *args)

    def forget(self, worker: int) -> None:
        """A worker has ended: it holds nothing any more, and waits for nothing."""
        self._held.pop(worker, None)
        for key in [key for key in self._waits if key[0] == worker]:
            self._end_wait(self._waits[key])

    def close(self) -> None:
        """Nobody is left to ask."""
        self.closed = True
        self._held.clear()
        self._waits.clear()

    # ------------------------------------------------------------ calls, values, actors

    def _submit(
        self, worker: int, numbers: Any, parent: int, order: TaskOrder, places: Any, packed: Any
    ) -> None:
        call = self._call(worker, numbers, parent, order, places, packed)
        try:
            life = None
            if order.actor >= 0:
                actor = self._core.store.find(order.actor)
                if actor is None:
                    gone = ActorDied(f"{order.label}: the actor is not there any more.")
                    raise self._core.refusal(order.actor) or gone
                life = actor._life
            self._core.prepare(call, order.options, life)
        except HeadraceError as error:
            call.fail(error)
            return
        self._core.dispatcher.accept(call)

    def _call(
        self, worker: int, numbers: Any, parent: int, order: TaskOrder, places: Any, packed: Any
    ) -> TaskCall:
        stored = self._core.store.add_packed(packed, once=True)
        references = [link.reference() for link in stored.links]
        call: TaskCall = self._core.task_call(order, stored, references, places)
        if call.pieces is not None and order.returns == "stream":
            self._core.store.name(call.pieces, numbers[0])
            self._keep(worker, numbers[0], call.pieces)
        else:
            call.future.named(numbers[0])
            self._keep(worker, numbers[0], call.future)
        if call.pieces is not None:
            for number, future in zip(numbers[1:], call.pieces.futures(), strict=True):
                future.named(number)
                self._keep(worker, number, future)
        parent_call = self.running.get(parent)
        if parent_call is not None:
            call.depth = parent_call.depth + 1
            if parent_call.children is None:
                parent_call.children = []
            parent_call.children.append(call)
        return call

    def _put(self, worker: int, number: int, places: Any, packed: Any) -> None:
        self._keep(worker, number, self._core.store.add_packed(packed, number=number))

    def _actor(self, worker: int, number: int, order: ActorOrder, places: Any, packed: Any) -> None:
        stored = self._core.store.add_packed(packed)
        references = [link.reference() for link in stored.links]
        try:
            handle = self._core.make_actor(self._core, order, stored, references, places)
        except HeadraceError as error:
            self._core.refuse(number, error)
            return
        self._core.store.name(handle, number)
        handle._named(number)
        self._keep(worker, number, handle)

    def _piece(self, worker: int, call: int, index: int, packed: Any) -> None:
        found = self.running.get(call)
        if found is None or found.pieces is None:
            packed.close()
        else:
            found.pieces.add(index, self._core.store.add_packed(packed))

    def _cancel(self, worker: int, number: int, force: bool, recursive: bool) -> None:
        found = self._core.store.find(number)
        if isinstance(found, (CallFuture, Pieces)):
            found.cancel(force, recursive)

    def _kill(self, worker: int, number: int, no_restart: bool) -> None:
        found = self._core.store.find(number)
        if found is not None:
            found._life.kill(no_restart=no_restart)

    # ------------------------------------------------------------ references

    def _hold(self, worker: int, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            found = self._core.store.find(number)
            if found is not None:
                self._keep(worker, number, found)

    def _drop(self, worker: int, numbers: tuple[int, ...]) -> None:
        held = self._held.get(worker, {})
        for number in numbers:
            entry = held.get(number)
            if entry is not None:
                entry[1] -= 1
                if not entry[1]:
                    del held[number]

    def _keep(self, worker: int, number: int, thing: Any) -> None:
        self._held.setdefault(worker, {}).setdefault(number, [thing, 0])[1] += 1

    # ------------------------------------------------------------ waiting

    def _wait(
        self,
        line: WorkerLine,
        worker: int,
        token: int,
        call: int,
        numbers: tuple[int, ...],
        count: int,
        fetch: bool,
    ) -> None:
        wait = Wait(token, line.pool, worker, count, fetch)
        self._waits[worker, token] = wait
        later = []
        for number in numbers:
            found = self._core.store.find(number)
            found = found.call if isinstance(found, Pieces) else found
            if isinstance(found, CallFuture) and not found.done():
                wait.futures.append(found)
                later.append((number, found))
            else:
                self._arrived(wait, number, found)
        if wait.over:
            return
        if wait.left <= 0:
            self._go(wait, wait.done)
            return
        waiting = self.running.get(call)
        if waiting is not None and waiting.life is None:
            wait.call = waiting
            self._core.admission.pause(waiting)
        for number, future in later:
            future.add_done_callback(partial(self._later, wait, number))

    def _later(self, wait: Wait, number: int, future: Future[Any]) -> None:
        self.post(partial(self._arrived, wait, number, future))

    def _arrived(self, wait: Wait, number: int, found: Any) -> None:
        """Something that is waited for is done: send it, if that is wanted."""
        if wait.over or self.closed:
            return
        wait.left -= 1
        wait.done.append(number)
        if wait.fetch:
            stored, error = _outcome(found)
            wait.pool.feed(wait.worker, "ready", wait.token, number, -1 if stored is None else stored, error)
        if not wait.left:
            self._go(wait, wait.done)

    def _go(self, wait: Wait, answer: Any) -> None:
        self._end_wait(wait)
        wait.pool.feed(wait.worker, "go", wait.token, answer)

    def _stop_waiting(self, worker: int, token: int) -> None:
        wait = self._waits.get((worker, token))
        if wait is not None:
            self._end_wait(wait)

    def _end_wait(self, wait: Wait) -> None:
        """It is over: its call has its cores again, even if others have them, too."""
        wait.over = True
        self._waits.pop((wait.worker, wait.token), None)
        if wait.call is not None:
            self._core.admission.resume(wait.call)
        wait.futures.clear()

    def _ask(self, line: WorkerLine, worker: int, token: int, what: str, *args: Any) -> None:
        """Answer a question; the worker waits for it."""
        wait = Wait(token, line.pool, worker, 1, False)
        self._waits[worker, token] = wait
        if what == "next":
            self._next(wait, *args)
            return
        found: Any
        if what == "named" and args[1] is not None:  # it has made an actor by that name
            self._go(wait, self._core.refusal(args[1]))
            return
        if what == "named":
            found = self._core.named_actor(args[0])
        else:
            call = self.running.get(args[0])
            found = call.life.handle() if call is not None and call.life is not None else None
        if found is not None:
            self._keep(worker, found._name, found)
        self._go(wait, None if found is None else (found._name, *found._described))

    def _next(self, wait: Wait, stream: int, index: int, number: int) -> None:
        """Tell of result ``index`` of a stream as soon as it is known."""
        if wait.over or self.closed:
            return
        pieces = self._core.store.find(stream)
        has = pieces.has(index) if isinstance(pieces, Pieces) else False
        if has is None:
            pieces.watch(lambda: self.post(partial(self._next, wait, stream, index, number)))
            return
        if has:
            found = pieces.take(index)
            found.named(number)
            self._keep(wait.worker, number, found)
        self._go(wait, has)


def _outcome(found: Any) -> tuple[Any, bytes | None]:
    """Return the stored value of what is done, or its error."""
    if found is None:
        lost = ExecutorClosed(
            "The value of this reference is gone: the driver has no reference to it any more."
        )
        return None, packed_error("get", lost)
    if not isinstance(found, CallFuture):
        return found, None
    if found.cancelled():
        return None, packed_error("get", CallCancelled(f"{found!r} was cancelled."))
    error = found.exception(0)
    return (found.stored, None) if error is None else (None, packed_error("get", error))
