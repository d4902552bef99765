"""The future of a call, whose result is made again in the driver when somebody asks; several results of one call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from concurrent.futures import TimeoutError as WaitTimeout
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.engines.references import Ref, reduce_reference, settle
from headrace.errors import ArgumentError, BadReturn, TimedOut

if TYPE_CHECKING:
    from headrace.engines.object_store import StoredObject


T = TypeVar("T")
_naming = threading.Lock()


def _ignore() -> None:
    """Nobody wants to know of it."""


class CallFuture(Future[T], Generic[T]):
    """What ``submit`` returns. It may be an argument of other calls: they wait for it, and get its result.

    The result goes from worker to worker without being unpickled in the driver. If the call failed, so do those that
    wait for it. ``result`` raises what the call raised. Executors make these: ``label`` is the name of the call, and
    ``store`` where its result will be.

    >>> import headrace as hr
    >>> with hr.connect(workers=1) as executor:
    ...     executor.submit(len, "abc").result()
    3
    """

    def __init__(self, label: str, store: object = None) -> None:
        super().__init__()
        self._label = label
        self.store: Any = store  # where its result will be
        self._when_cancelled: Callable[[], None] = _ignore
        self._stop: Callable[[bool, bool], None] | None = None
        self._number = -1
        self.shared = False  # whether something that is stored refers to it

    def result(self, timeout: float | None = None) -> T:
        """Return what the call returned, or raise what it raised, with its traceback in the worker.

        Each time it is unpickled anew: what was changed in one result is not changed in the next.
        """
        stored: Any = super().result(timeout)
        return stored.value()  # type: ignore[no-any-return]

    def cancel(self, force: bool | None = None, recursive: bool = True) -> bool:
        """Cancel the call if it has not begun; return whether it is cancelled.

        With ``force=False``, one that runs is interrupted, too, and so are those that it has made (``recursive``);
        with ``force=True`` its worker is ended. It then raises ``CallCancelled``.
        """
        if force is not None and self._stop is not None and not self.done():
            self._stop(force, recursive)
            return True
        was = self.cancelled()
        now = super().cancel()
        if now and not was:
            self._when_cancelled()
        return now

    def on_cancel(
        self, cancelled: Callable[[], None], stop: Callable[[bool, bool], None] | None = None
    ) -> None:
        """Have ``cancelled`` called when somebody cancels the call, and ``stop`` when that shall stop it, too."""
        self._when_cancelled = cancelled
        self._stop = stop

    def drop_callback(self) -> None:
        """Call nothing any more when it is cancelled."""
        self._when_cancelled = _ignore
        self._stop = None

    @property
    def number(self) -> int:
        """Its name in the driver and in workers."""
        if self._number < 0:
            with _naming:
                if self._number < 0:
                    self._number = self.store.name(self)
        return self._number

    def named(self, number: int) -> None:
        """It was made in a worker, which has named it."""
        self._number = self.store.name(self, number)

    @property
    def holder(self) -> CallFuture[T]:
        """What has the result: itself."""
        return self

    def reference(self) -> CallFuture[T]:
        """Return what stands for it in the driver: itself."""
        return self

    def hex(self) -> str:
        """Return its name: the same for all references to the result, in the driver and in workers."""
        return f"{self.number:056x}"

    def future(self) -> Future[T]:
        """Return it as a plain future of the result."""
        future: Future[T] = Future()
        self.add_done_callback(lambda _: settle(future, self.result))
        return future

    as_future, __await__ = Ref.as_future, Ref.__await__

    @property
    def stored(self) -> StoredObject:
        """The result as it came; for a call that ended well."""
        stored: Any = super().result(0)
        return stored  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return reduce_reference(self)

    def __identified_by__(self) -> T:
        """See ``Ref``."""
        return self.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._label}: {self._state.lower()}>"


class ActorId(str):
    """An actor's number as text, with the method of Ray's that gives it."""

    __slots__ = ()

    def hex(self) -> str:
        """Return the text."""
        return str(self)


def fetched(what: Any, timeout: float | None = None) -> Any:
    """Return the value of a ``Ref``, the result of a future, or a list of them; see ``Executor.get``."""
    until = None if timeout is None else time.monotonic() + timeout
    if isinstance(what, (list, tuple)):
        _wait_for_all(what, timeout)
        return [_one(item, until, timeout) for item in what]
    _wait_for_all([what], timeout)
    return _one(what, until, timeout)


def _wait_for_all(items: Sequence[Any], timeout: float | None) -> None:
    """In a worker, ask the driver for all of them at once."""
    holders = [item.holder for item in items if isinstance(item, Ref)]
    asking = next((holder for holder in holders if hasattr(holder, "wait_for")), None)
    if asking is not None:
        asking.wait_for(holders, timeout)


def _one(item: Any, until: float | None, timeout: float | None) -> Any:
    if isinstance(item, Ref):
        return item.get()
    if not isinstance(item, Future):
        raise ArgumentError(f"get({item!r}): it takes a Ref, a future, or a list of them.")
    try:
        return item.result(None if until is None else max(0.0, until - time.monotonic()))
    except (TimeoutError, WaitTimeout) as error:
        if item.done():
            raise  # the function's own
        raise TimedOut(f"{item!r} was not done within {timeout:g} s.") from error


def wait_for_first(futures: Sequence[Future[Any]], timeout: float | None) -> None:
    """Wait until one of them is done; in a worker, so that others may have its cores meanwhile."""
    inner = [future.inner for future in futures if hasattr(future, "inner")]
    if inner and len(inner) == len(futures):
        inner[0].holder.core.wait(inner, 1, timeout)
        wait(futures, 0.001, FIRST_COMPLETED)  # what came is passed on by another thread
    else:
        wait(futures, timeout, FIRST_COMPLETED)


# ---------------------------------------------------------------- several results


class Pieces:
    """The futures of a call with several results. ``count``: how many there will be; None: nobody knows."""

    def __init__(self, call: CallFuture[Any], label: str, count: int | None) -> None:
        self.call = call
        self.count = count
        self._label = label
        self._futures: list[CallFuture[Any] | None] = [self._future() for _ in range(count or 0)]
        self._changed = threading.Condition()
        self._ended = False
        self._watchers: list[Callable[[], None]] = []

    def cancel(self, force: bool, recursive: bool) -> None:
        """Cancel the call."""
        self.call.cancel(force, recursive)

    def futures(self) -> list[CallFuture[Any]]:
        """The futures, where their number is known."""
        return [future for future in self._futures if future is not None]

    def add(self, index: int, stored: Any) -> None:
        """Result ``index`` is there; in the dispatcher's thread."""
        with self._changed:
            while len(self._futures) <= index and self.count is None:
                self._futures.append(self._future())
            future = self._futures[index]
        if future is not None:
            with contextlib.suppress(InvalidStateError):
                future.set_result(stored)
        self._tell()

    def end(self, error: BaseException | None) -> None:
        """There will be no more: the call has ended, maybe with an error."""
        with self._changed:
            if self._ended:
                return
            if error is not None and self.count is None:
                self._futures.append(self._future())
            if error is None and self.count is not None:
                error = BadReturn(f"{self._label} did not return all of its {self.count} results.")
            missing = [each for each in self._futures if each is not None and not each.done()]
            self._ended = True
        for future in missing:
            if error is not None:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(error)
        self._tell()

    def has(self, index: int) -> bool | None:
        """Say whether there is a result ``index``; None: not yet."""
        with self._changed:
            if index < len(self._futures):
                return True
            return False if self._ended else None

    def take(self, index: int) -> CallFuture[Any]:
        """Return the future of result ``index``, once."""
        with self._changed:
            future, self._futures[index] = self._futures[index], None
        if future is None:
            raise BadReturn(f"Result {index} of {self._label} was taken before: a stream is read once.")
        return future

    def wait(self, index: int, timeout: float | None) -> bool:
        """Wait until it is known whether there is a result ``index``; say so."""
        with self._changed:
            known = self._changed.wait_for(lambda: index < len(self._futures) or self._ended, timeout)
        if not known:
            raise TimedOut(f"{self._label} had no further result within {timeout:g} s.")
        return bool(self.has(index))

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have ``watcher`` called, once, when there is something new."""
        with self._changed:
            self._watchers.append(watcher)

    def _future(self) -> CallFuture[Any]:
        future: CallFuture[Any] = CallFuture(self._label, self.call.store)
        future.on_cancel(_nothing, self.cancel)
        future.set_running_or_notify_cancel()
        return future

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()


def _nothing() -> None:
    """Only the call itself can be cancelled."""


class ResultStream:
    """What ``submit`` returns for ``num_returns="streaming"``: an iterator of the futures of what is yielded.

    ``next`` waits until there is another. Whatever ends the generator is raised by the last future. It can also be
    used with ``async for``.
    """

    def __init__(self, pieces: Any) -> None:
        """``pieces`` are ``Pieces``, or what asks the driver for them."""
        self._pieces = pieces
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        found = self.next_ready(None)
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        import asyncio

        found = await asyncio.to_thread(self.next_ready, None)
        if found is None:
            raise StopAsyncIteration
        return found

    def next_ready(self, timeout: float | None) -> Any:
        """Return the next future, or None at the end; ``TimedOut`` after ``timeout`` seconds."""
        if not self._pieces.wait(self._next, timeout):
            return None
        self._next += 1
        return self._pieces.take(self._next - 1)

    def has_next(self, timeout: float | None) -> bool:
        """Wait until ``next`` would not wait; False after ``timeout`` seconds."""
        try:
            self._pieces.wait(self._next, timeout)
        except TimedOut:
            return False
        return True

    def completed(self) -> Any:
        """Return the future of the end."""
        return self._pieces.call

    def cancel(self, force: bool, recursive: bool) -> None:
        """Cancel the call."""
        self._pieces.call.cancel(force, recursive)
