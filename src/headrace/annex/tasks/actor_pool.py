"""Items of work for a few actors, in the manner of Ray's ``ActorPool``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from typing import Any

from headrace.annex.tasks.actors import ActorHandle
from headrace.annex.tasks.futures import wait_for_first
from headrace.annex.tasks.hosting.worker_core import InnerFuture
from headrace.engines.references import settle
from headrace.errors import ArgumentError, TimedOut

MAX_UNREAD = 4  # results per actor that were not collected; no more work is begun beyond

Fn = Callable[[Any, Any], Any]


class ActorPool:
    """Sends items to actors as they become free; made by ``Executor.actor_pool``, or of actors that there are.

    ``submit(fn, value)`` calls ``fn(actor, value)`` in this process as soon as an actor is free; ``fn`` returns the
    future of a method: ``lambda actor, value: actor.predict(value)``. Results are returned by ``get_next``, in the
    order of ``submit``, or ``get_next_unordered``, as they come; or all at once by ``map``. What waits for a free
    actor is begun when results are got. Use it from one thread.

    ``actors`` are handles of actors, from ``Executor.actor``. An actor in whose process work died is made anew, and
    the work tried again there, if it was made to be (``max_restarts``, ``max_retries``; in an ``actor_pool`` it is).

    Getting a result raises what the call raised, ``ActorDied`` if the actor is lost, and ``StopIteration`` if there
    is none. ``ArgumentError`` is raised if ``fn`` does not return the future of a call.

    >>> import headrace as hr
    >>> class Doubler:
    ...     def __init__(self, offset):
    ...         self.offset = offset
    ...     def double(self, value):
    ...         return 2 * value + self.offset
    >>> with hr.connect(workers=2) as executor:
    ...     pool = executor.actor_pool(Doubler, 1, size=2)
    ...     list(pool.map(lambda actor, value: actor.double(value), [1, 2, 3]))
    [3, 5, 7]
    >>> with hr.connect(workers=2) as executor:
    ...     pool = hr.ActorPool([executor.actor(Doubler, 0) for _ in range(2)])
    ...     for value in (4, 5):
    ...         pool.submit(lambda actor, value: actor.double(value), value)
    ...     while pool.has_next():
    ...         print(pool.get_next(timeout=60))
    8
    10
    """

    def __init__(self, actors: Iterable[ActorHandle]) -> None:
        self._lock = threading.RLock()
        # Results not collected yet, by actor.
        self._unread: dict[ActorHandle, int] = dict.fromkeys(map(_actor, actors), 0)
        self._last: dict[ActorHandle, Future[Any]] = {}
        self._futures: dict[int, tuple[Future[Any], ActorHandle]] = {}  # by number of the item
        self._pending: deque[tuple[Fn, Any]] = deque()
        self._begun = 0
        self._next = 0

    # ------------------------------------------------------------ work

    def submit(self, fn: Fn, value: Any) -> None:
        """Have ``fn(actor, value)`` called with the next free actor: at once if there is one.

        What ``fn`` raises in this process is raised here, or by the method that gets a result.
        """
        with self._lock:
            self._pending.append((fn, value))
            self._start_pending()

    def has_next(self) -> bool:
        """Say whether there are results to get, now or later; if not, ``get_next`` raises ``StopIteration``."""
        return bool(self._futures or self._pending)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the next result, in the order of ``submit``.

        Raises what the call raised. ``StopIteration`` if there is none to come. ``TimedOut`` (a ``TimeoutError``)
        after ``timeout`` seconds; with ``ignore_if_timedout``, that result is then passed over. ``ValueError`` if
        ``get_next_unordered`` took a later one.
        """
        self._check_next()
        if self._next >= self._begun and not self._pending:
            raise ArgumentError(
                "get_next() after get_next_unordered(): the results are not in order any more."
            )
        return self._wait_for(
            lambda: self._next if self._is_done(self._next) else None, timeout, ignore_if_timedout
        )

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return a result that is there, whichever comes first.

        ``timeout`` and ``ignore_if_timedout`` are those of ``get_next``, and it raises the same.
        """
        self._check_next()
        return self._wait_for(
            lambda: next((item for item in self._futures if self._is_done(item)), None),
            timeout,
            ignore_if_timedout,
        )

    def map(self, fn: Fn, values: Iterable[Any]) -> Iterator[Any]:
        """Submit ``fn`` for all ``values``; yield the results in their order, or raise what one raised.

        Results of earlier items are dropped.
        """
        self._submit_all(fn, values)
        return self._results(self.get_next)

    def map_unordered(self, fn: Fn, values: Iterable[Any]) -> Iterator[Any]:
        """Submit ``fn`` for all ``values``; yield the results as they come, or raise what one raised.

        Results of earlier items are dropped.
        """
        self._submit_all(fn, values)
        return self._results(self.get_next_unordered)

    # ------------------------------------------------------------ actors

    def has_free(self) -> bool:
        """Say whether some actor has no result to be collected, and no item waits. Raises nothing."""
        with self._lock:
            return not self._pending and not all(self._unread.values())

    def pop_idle(self) -> ActorHandle | None:
        """Remove an actor from the pool that has no result to be collected; None if there is none. Raises nothing."""
        with self._lock:
            if not self.has_free():
                return None
            actor = next(actor for actor in reversed(self._unread) if not self._unread[actor])
            self._remove(actor)
            return actor

    def push(self, actor: ActorHandle) -> None:
        """Put an actor into the pool. Raises ``ArgumentError``, a ``ValueError``, if it is there already."""
        with self._lock:
            if _actor(actor) in self._unread:
                raise ArgumentError(f"{actor!r} is in this pool already.")
            self._unread[actor] = 0
            self._start_pending()

    # ------------------------------------------------------------ private

    def _check_next(self) -> None:
        if not self.has_next():
            raise StopIteration("There is no result to come.")
        if not self._unread and not self._futures:
            raise ArgumentError("There is no actor in this pool, and items wait for one: push an actor.")

    def _wait_for(self, find: Callable[[], int | None], timeout: float | None, ignore: bool) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._start_pending()
                item = find()
            if item is not None:
                return self._collect(item).result()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            running = [future for future, _ in self._futures.values() if not future.done()]
            wait_for_first(running, left)
        if not ignore:
            raise TimedOut(f"No result within {timeout:g} s.")
        item = self._next if self._next in self._futures else next(iter(self._futures))
        raise TimedOut(f"No result within {timeout:g} s; {self._collect(item)!r} is passed over.")

    def _collect(self, item: int) -> Future[Any]:
        """Remove and return an item's future; its actor has one uncollected result less."""
        with self._lock:
            future, actor = self._futures.pop(item)
            self._next = max(self._next, item + 1)
            if actor in self._unread:
                self._unread[actor] -= 1
                if future.done() and not actor._life.alive and self._others_live(actor):
                    self._remove(actor)
            self._start_pending()
            return future

    def _start_pending(self) -> None:
        """Begin items that wait, with the actors that are free."""
        while self._pending and len(self._futures) < MAX_UNREAD * len(self._unread):
            actor = next((actor for actor in reversed(self._unread) if self._is_free(actor)), None)
            if actor is None:
                return
            fn, value = self._pending.popleft()
            future = fn(actor, value)
            future = _gathered(future) if isinstance(future, list) else future
            future = future.future() if isinstance(future, InnerFuture) else future
            if not isinstance(future, Future):
                raise ArgumentError(
                    f"The function given to a pool returned a {type(future).__name__}. It must return the call of a "
                    "method, such as lambda actor, value: actor.predict(value)."
                )
            self._futures[self._begun] = future, actor
            self._begun += 1
            self._unread[actor] += 1
            self._last[actor] = future

    def _is_free(self, actor: ActorHandle) -> bool:
        last = self._last.get(actor)
        return last is None or last.done()

    def _is_done(self, item: int) -> bool:
        return item in self._futures and self._futures[item][0].done()

    def _others_live(self, actor: ActorHandle) -> bool:
        return any(other is not actor and other._life.alive for other in self._unread)

    def _remove(self, actor: ActorHandle) -> None:
        del self._unread[actor]
        self._last.pop(actor, None)

    def _submit_all(self, fn: Fn, values: Iterable[Any]) -> None:
        with self._lock:
            self._pending.clear()
            for item in list(self._futures):
                self._collect(item)
            self._next = self._begun
            for value in values:
                self.submit(fn, value)

    def _results(self, get: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield get()


def _gathered(futures: list[Any]) -> Any:
    """Return one future of the results of a method with several; what is none is returned as it is."""
    plain = [each.future() if isinstance(each, InnerFuture) else each for each in futures]
    if not plain or not all(isinstance(each, Future) for each in plain):
        return futures
    whole: Future[Any] = Future()

    def one_done(_: Future[Any]) -> None:
        if all(each.done() for each in plain):
            with contextlib.suppress(InvalidStateError):  # two of them noticed
                settle(whole, lambda: [each.result() for each in plain])

    for each in plain:
        each.add_done_callback(one_done)
    return whole


def _actor(given: Any) -> ActorHandle:
    if not isinstance(given, ActorHandle):
        raise ArgumentError(f"A pool takes actors, and {given!r} is not one: Executor.actor(…) makes one.")
    return given
