"""The future of a call: its result is made again in the driver when somebody asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as WaitTimeout
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.engines.references import Ref, Shown, reduce_reference
from headrace.errors import ArgumentError, TimedOut

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
        self.task: Any = None  # the call, until it is over
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
        task = self.task
        if task is not None:
            task.settle()
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
        self._stop = self.task = None

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

        def done(_: Any) -> None:
            try:
                value = self.result()
            except BaseException as error:
                future.set_exception(Shown.error(error))
            else:
                future.set_result(value)

        self.add_done_callback(done)
        return future

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self.future()).__await__()

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
