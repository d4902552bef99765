"""Calls of the user's code: direct, in threads, on an event loop, or submitted to an asynchronous predictor.

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
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.arrow.values import ConversionError
from headrace.core.process import end_fork, ending_forks
from headrace.plan.functions import Built, Function
from headrace.worker.batching import BatchTuner
from headrace.worker.messages import is_lasting

if TYPE_CHECKING:
    import asyncio

    import pyarrow as pa

IN_FLIGHT = 16
"""Calls of an async function at a time, unless the user says otherwise.

At 100 ms a call, that is 160 calls a second. More would seldom help: HTTP clients open 100 connections at most, for
all workers of this machine an endpoint sees a multiple of it, and so many batches are held in memory.
"""

Finish = Callable[[Any], Any]


def _nothing() -> None:
    """There is nothing to do."""


class PendingCall(msgspec.Struct, frozen=True):
    """A call that was started; ``result`` waits for its end, and returns the result or raises.

    ``cancel``: do not start, or stop if possible, as the result is not needed; it does not wait. ``wait`` waits until
    the user's code does not run for this call any more, and never raises.
    """

    result: Callable[[], Any]
    cancel: Callable[[], object] = _nothing
    wait: Callable[[], object] = _nothing


class Pace(msgspec.Struct):
    """What the fast road knows of a function; see ``FastRoad``.

    ``rows``: of the last window. ``seconds`` and ``bytes``: of what is made of a row, 0 if nothing was measured yet.
    ``failed``: how many windows in a row were not plain. ``skipped``: how many are still to take the careful road.
    """

    rows: int = 1
    seconds: float = 0.0
    bytes: float = 0.0
    failed: int = 0
    skipped: int = 0


class Caller:
    """Calls one function: at most ``depth`` batches at a time, and of ``ceiling`` rows each if that is set.

    ``tuner`` remembers, as long as the function lives, how many rows at a time are best for it.
    The base class calls directly, when the result is asked for.
    """

    depth = 1

    def __init__(self, built: Built) -> None:
        self.built = built
        self.ceiling: int | None = None
        self.most_rows = 0  # rows of the biggest batch so far
        self.shrink_requested = False  # set the ceiling to half of ``most_rows``
        self.tuner = BatchTuner()
        self.result_schema: pa.Schema | None = None  # of the last results
        self.has_run = False  # a call has succeeded, so the function has done its imports
        self.pace = Pace()
        self.reported: Any = None  # of what a language model was asked, the last
        self.taken = 0  # rows that have gone on with results

    def lower_ceiling(self, rows: int) -> bool:
        """Give the function no more than ``rows`` rows at a time from now on; False if that is nothing new."""
        if self.ceiling is not None and self.ceiling <= rows:
            return False
        self.ceiling = rows
        return True

    def start(self, view: Any, finish: Finish) -> PendingCall:
        """Begin a call; its result is what ``finish`` makes of what the function returns."""
        return PendingCall(lambda: finish(refuse_coroutine(self.built.call(view))))

    def input_ends(self, ended: bool) -> None:
        """Tell a model that wants to know it whether rows come but those that it was given."""
        self.built.parts.input_ends(ended)

    def close(self) -> None:
        """End threads and close the model; no calls are running."""
        self.built.close()


def make_caller(function: Function, built: Built, most: int | None, loop: EventLoop) -> Caller:
    """Return how a function is called; ``most`` is the ``max_in_flight`` that the user gave."""
    if function.is_async:
        caller = _AsyncGeneratorCaller if function.is_async_generator else _AsyncCaller
        return caller(built, most or IN_FLIGHT, loop)
    parts = built.parts
    submit, collect = parts.submit, parts.collect
    if submit is not None and collect is not None:
        depth = int(most or parts.in_flight or 1)
        return _SubmitCaller(built, submit, collect, depth) if depth > 1 else Caller(built)
    return _ThreadCaller(built, most) if most is not None and most > 1 else Caller(built)


def refuse_coroutine(value: Any) -> Any:
    """Raise ``ConversionError`` if the result is a coroutine or an async generator."""
    if inspect.isasyncgen(value):
        raise ConversionError(
            "it returned an async generator: put the `yield` into the function itself, and define it with `async def`"
        )
    if inspect.iscoroutine(value):
        value.close()
        raise ConversionError(
            "it returned a coroutine: define the function with `async def`, or in a class `async def __call__`"
        )
    return value


def watched(call: PendingCall, end: Callable[[], None]) -> PendingCall:
    """Return the call as one that reports its end to the driver."""

    def result() -> Any:
        try:
            value = call.result()
        except BaseException as error:
            if not is_lasting(error):  # else the worker is about to end over it
                end()
            raise
        end()
        return value

    return PendingCall(result, call.cancel, call.wait)


def not_started(error: BaseException) -> PendingCall:
    """Return what stands for a call that could not start; ``result`` raises why."""

    def result() -> Any:
        raise error

    return PendingCall(result)


# ---------------------------------------------------------------- threads


class _ThreadCaller(Caller):
    """Calls in threads; generators are consumed there, too."""

    def __init__(self, built: Built, depth: int) -> None:
        super().__init__(built)
        self.depth = depth
        self._pool = ThreadPoolExecutor(depth, "headrace-call")

    def start(self, view: Any, finish: Finish) -> PendingCall:
        future = self._pool.submit(ending_forks(lambda: finish(refuse_coroutine(self.built.call(view)))))
        return PendingCall(future.result, future.cancel, partial(concurrent.futures.wait, [future]))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        super().close()


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

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> RunningTask:
        """Begin a coroutine."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            self._ending = False
            self._thread = threading.Thread(
                target=self._serve, args=(self._loop,), name="headrace-loop", daemon=True
            )
            self._thread.start()
        return RunningTask(self._loop, work)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ending:
            with contextlib.suppress(BaseException):  # sys.exit() in a task of the user's ends no worker
                loop.run_forever()

    def close(self) -> None:
        """Cancel running calls, and end the thread. A new loop is started if one is needed again."""
        if self._loop is None or self._thread is None:
            return
        self.run(_cancel_all_tasks)
        self._ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _cancel_all_tasks() -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


class RunningTask:
    """A running coroutine; ``future`` is done when nothing of it runs any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.future: Future[Any] = Future()
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._begin, work, context=contextvars.copy_context())

    def _begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = self._loop.create_task(self._run(work))
        self._task.add_done_callback(self._on_done)

    async def _run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            value = await work()
            end_fork()
        except BaseException as error:  # SystemExit would end the loop
            end_fork(error)
            self.future.set_exception(error)
        else:
            self.future.set_result(value)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self.future.cancel():  # it was given up before its first step
            self.future.set_running_or_notify_cancel()

    def call(self, finish: Finish = lambda value: value) -> PendingCall:
        """Return it as a call; its result is what ``finish`` makes of what the coroutine returns."""
        return PendingCall(
            lambda: finish(self.future.result()),
            self.cancel,
            partial(concurrent.futures.wait, [self.future]),
        )

    def cancel(self) -> None:
        """Cancel it."""
        if not self.future.done():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _AsyncCaller(Caller):
    """Calls on the worker's event loop; at most ``depth`` calls run at a time, for all attempts together."""

    def __init__(self, built: Built, depth: int, loop: EventLoop) -> None:
        import asyncio

        super().__init__(built)
        self.depth = depth
        self._loop = loop
        self._slots = asyncio.Semaphore(depth)

    def start(self, view: Any, finish: Finish) -> PendingCall:
        async def work() -> Any:
            async with self._slots:
                return await self.built.call(view)

        return self._loop.start(work).call(finish)


class _AsyncGeneratorCaller(_AsyncCaller):
    """The same for a function that yields several batches between its waits."""

    def start(self, view: Any, finish: Finish) -> PendingCall:
        async def work() -> Any:
            batches: list[Any] = []
            async with self._slots, contextlib.aclosing(self.built.call(view)) as yielded:
                async for each in yielded:  # converted at once: it may fill one array again and again
                    batches += finish(each)
            return batches

        return self._loop.start(work).call()


# ---------------------------------------------------------------- asynchronous predictors


class _SubmitCaller(Caller):
    """Submits batches to a predictor that computes asynchronously, and collects the results."""

    def __init__(
        self, built: Built, submit: Callable[[Any], Any], collect: Callable[[Any], Any], depth: int
    ) -> None:
        super().__init__(built)
        self.depth = depth
        self._submit = submit
        self._collect = collect

    def start(self, view: Any, finish: Finish) -> PendingCall:
        handle = self._submit(view)
        return PendingCall(lambda: finish(refuse_coroutine(self._collect(handle))))
