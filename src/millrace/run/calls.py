"""How the user's code is called: here and now, by threads, on an event loop, or by a predictor that works by itself.

One caller belongs to one function in one worker, and lives as long as the function does.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from millrace.core.values import ConversionError
from millrace.plan.logical import Built, Function
from millrace.run.batching import Tuner

if TYPE_CHECKING:
    import asyncio

    import pyarrow as pa

IN_FLIGHT = 16
"""Calls of an async function at a time, unless the user says otherwise.

At 100 ms a call, that is 160 calls a second. More would seldom help: HTTP clients open 100 connections at most, for
all workers of this machine an endpoint sees a multiple of it, and so many batches are held in memory.
"""

Finish = Callable[[Any], Any]


class Call(Protocol):
    """A call that was begun."""

    def result(self) -> Any:
        """Wait for the end, and return what came of it, or raise."""
        ...

    def give_up(self) -> None:
        """Nobody wants the result: do not begin, or stop, as far as that goes. Does not wait."""
        ...

    def wait(self) -> None:
        """Return when the user's code is not at work on it any more; never raises."""
        ...


class Caller:
    """Calls one function: at most ``depth`` batches at a time, and of ``ceiling`` rows each if that is set.

    ``tuner`` remembers, as long as the function lives, how many rows at a time are best for it.
    The base class calls here and now, when the result is asked for.
    """

    depth = 1

    def __init__(self, built: Built) -> None:
        self.built = built
        self.ceiling: int | None = None
        self.biggest = 0  # rows of the biggest batch so far
        self.squeezed = False  # half of that is to be the ceiling
        self.tuner = Tuner()
        self.seen: pa.Schema | None = None  # of the last results
        self.tried = False  # a call came back well: what the function imports is imported

    def lower(self, rows: int) -> bool:
        """Give the function no more than ``rows`` rows at a time from now on; False if that is nothing new."""
        if self.ceiling is not None and self.ceiling <= rows:
            return False
        self.ceiling = rows
        return True

    def start(self, view: Any, finish: Finish) -> Call:
        """Begin a call; its result is what ``finish`` makes of what the function returns."""
        return _Later(lambda: finish(plain(self.built.call(view))))

    def close(self) -> None:
        """Let go of threads and of the model; no calls are under way."""
        self.built.close()


def caller_of(function: Function, built: Built, most: int | None, loop: EventLoop) -> Caller:
    """Return how a function is called; ``most`` is the ``max_in_flight`` that the user gave."""
    if function.is_async:
        return _Awaiting(built, most or IN_FLIGHT, loop)
    submit = getattr(built.predictor, "submit", None)
    collect = getattr(built.predictor, "collect", None)
    if callable(submit) and callable(collect):
        depth = int(most or getattr(built.predictor, "in_flight", 2) or 1)
        return _Submitting(built, submit, collect, depth) if depth > 1 else Caller(built)
    return _Threads(built, most) if most is not None and most > 1 else Caller(built)


def plain(value: Any) -> Any:
    """Refuse what a function returns that is async without looking so."""
    if inspect.iscoroutine(value):
        value.close()
        raise ConversionError(
            "it returned a coroutine: define the function with `async def`, or in a class `async def __call__`"
        )
    return value


class _Later:
    """A call that is made when its result is asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def result(self) -> Any:
        return self._work()

    def give_up(self) -> None:
        pass

    def wait(self) -> None:
        pass


class Raised(_Later):
    """A call that could not begin; it tells why when its turn comes."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(self._raise)
        self._error = error

    def _raise(self) -> Any:
        raise self._error


# ---------------------------------------------------------------- threads


class _Threads(Caller):
    """Calls in threads; what a generator yields is taken there, too."""

    def __init__(self, built: Built, depth: int) -> None:
        super().__init__(built)
        self.depth = depth
        self._pool = ThreadPoolExecutor(depth, "millrace-call")

    def start(self, view: Any, finish: Finish) -> Call:
        return _Pooled(self._pool.submit(lambda: finish(plain(self.built.call(view)))))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        super().close()


class _Pooled:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self) -> Any:
        return self._future.result()

    def give_up(self) -> None:
        self._future.cancel()

    def wait(self) -> None:
        concurrent.futures.wait([self._future])


# ---------------------------------------------------------------- an event loop


class EventLoop:
    """The event loop of a worker, in a thread of its own that begins when it is first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending = False

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the loop, and wait for what it, or its coroutine, returns."""

        async def work() -> Any:
            value = function(*args, **kwargs)
            return await value if inspect.iscoroutine(value) else value

        return self.start(work).future.result()

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> _Task:
        """Begin a coroutine."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            self._ending = False
            self._thread = threading.Thread(
                target=self._serve, args=(self._loop,), name="millrace-loop", daemon=True
            )
            self._thread.start()
        return _Task(self._loop, work)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ending:
            with contextlib.suppress(BaseException):  # sys.exit() in a task of the user's ends no worker
                loop.run_forever()

    def close(self) -> None:
        """Cancel what is under way, and end the thread. The loop begins anew if it is needed again."""
        if self._loop is None or self._thread is None:
            return
        self.run(_ended)
        self._ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _ended() -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


class _Task:
    """A coroutine on its way; ``future`` is done when nothing of it runs any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.future: Future[Any] = Future()
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._begin, work, context=contextvars.copy_context())

    def _begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = self._loop.create_task(self._carry(work))
        self._task.add_done_callback(self._over)

    async def _carry(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            value = await work()
        except BaseException as error:  # SystemExit would end the loop
            self.future.set_exception(error)
        else:
            self.future.set_result(value)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self.future.cancel():  # it was given up before its first step
            self.future.set_running_or_notify_cancel()

    def give_up(self) -> None:
        """Cancel it."""
        if not self.future.done():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _Awaiting(Caller):
    """Calls on the worker's event loop; all attempts together have ``depth`` calls under way at most."""

    def __init__(self, built: Built, depth: int, loop: EventLoop) -> None:
        import asyncio

        super().__init__(built)
        self.depth = depth
        self._loop = loop
        self._places = asyncio.Semaphore(depth)

    def start(self, view: Any, finish: Finish) -> Call:
        async def work() -> Any:
            async with self._places:
                return await self.built.call(view)

        return _Awaited(self._loop.start(work), finish)


class _Awaited(_Pooled):
    def __init__(self, task: _Task, finish: Finish) -> None:
        super().__init__(task.future)
        self._task = task
        self._finish = finish

    def result(self) -> Any:
        return self._finish(self._future.result())

    def give_up(self) -> None:
        self._task.give_up()


# ---------------------------------------------------------------- predictors that work by themselves


class _Submitting(Caller):
    """Hands batches to a predictor that computes by itself, and collects what it made of them."""

    def __init__(
        self, built: Built, submit: Callable[[Any], Any], collect: Callable[[Any], Any], depth: int
    ) -> None:
        super().__init__(built)
        self.depth = depth
        self._submit = submit
        self._collect = collect

    def start(self, view: Any, finish: Finish) -> Call:
        handle = self._submit(view)
        return _Later(lambda: finish(plain(self._collect(handle))))
