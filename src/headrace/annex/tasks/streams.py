"""Several results of one call: a fixed number, or a stream of as many as come."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import InvalidStateError
from typing import Any

from headrace.annex.tasks.futures import CallFuture
from headrace.errors import BadReturn, TimedOut


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

    _next = 0

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
        raise NotImplementedError

    def cancel(self, force: bool, recursive: bool) -> None:
        """Cancel the call."""
        raise NotImplementedError

    def has_next(self, timeout: float | None) -> bool:
        """Wait until ``next`` would not wait; False after ``timeout`` seconds."""
        try:
            self._peek(timeout)
        except TimedOut:
            return False
        return True

    def _peek(self, timeout: float | None) -> None:
        raise NotImplementedError


class OuterStream(ResultStream):
    """In the driver."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def next_ready(self, timeout: float | None) -> Any:
        """See ``ResultStream``."""
        if not self._pieces.wait(self._next, timeout):
            return None
        self._next += 1
        return self._pieces.take(self._next - 1)

    def completed(self) -> CallFuture[Any]:
        """Return the future of the end."""
        return self._pieces.call

    def cancel(self, force: bool, recursive: bool) -> None:
        """Cancel the call."""
        self._pieces.cancel(force, recursive)

    def _peek(self, timeout: float | None) -> None:
        self._pieces.wait(self._next, timeout)


class InnerStream(ResultStream):
    """In a worker."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._found: list[Any] = []

    def next_ready(self, timeout: float | None) -> Any:
        """See ``ResultStream``."""
        self._peek(timeout)
        found = self._found.pop()
        if found is not None:
            self._next += 1
        else:
            self._found.append(None)
        return found

    def completed(self) -> Any:
        """Return the future of the end."""
        return self._holder.reference()

    def cancel(self, force: bool, recursive: bool) -> None:
        """Cancel the call."""
        self._holder.reference().cancel(force, recursive)

    def _peek(self, timeout: float | None) -> None:
        if not self._found:
            self._found.append(self._holder.core.next_of_stream(self._holder, self._next, timeout))
