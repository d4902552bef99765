"""What a worker of an executor hosts: it runs functions, or constructs an object and calls its methods."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any

import msgspec

from headrace.annex.tasks.calls import Returns
from headrace.annex.tasks.hosting.worker_core import (
    CallFailed,
    Interrupted,
    WorkerCore,
    current_call,
    packed_error,
)
from headrace.core.engine_ports import WorkerContext
from headrace.core.failures import name_of, words
from headrace.core.process import end_fork, ending_forks, flush_streams
from headrace.engines.out_of_band_pickle import pack
from headrace.engines.references import (
    OutOfBandPickle,
    Ref,
    collecting_references,
    holder_of,
    keep_restored,
    read_only,
)
from headrace.errors import BadReturn
from headrace.worker.calls import EventLoop, RunningTask

# ---------------------------------------------------------------- methods side by side

# Runs an action, and packs what it returns, if that was not sent as a stream already.
Answer = Callable[[Callable[[], Any], bool], Any]


class Threads:
    """So many threads."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="headrace-method")

    def submit(self, call: int, action: Callable[[], Any], answer: Answer, send_all: Any) -> Future[Any]:
        """Have ``action`` called in a thread."""
        return self._threads.submit(answer, action, False)

    def cancel(self, call: int) -> bool:
        """A thread cannot be interrupted."""
        return True


class Coroutines:
    """One event loop in a thread of its own, with so many methods at a time; plain methods run in it, too."""

    def __init__(self, count: int) -> None:
        self._loop = EventLoop()
        self._running: dict[int, RunningTask] = {}
        self._free = asyncio.Semaphore(count)

    def submit(self, call: int, action: Callable[[], Any], answer: Answer, send_all: Any) -> Future[Any]:
        """Have ``action``, and what it returns awaited, in the loop."""
        task = self._running[call] = self._loop.start(partial(self._call, call, action, answer, send_all))
        task.future.add_done_callback(lambda _: self._running.pop(call, None))
        return task.future

    def cancel(self, call: int) -> bool:
        """Cancel a call that is under way."""
        task = self._running.get(call)
        if task is not None:
            task.cancel()
        return True

    async def _call(self, call: int, action: Any, answer: Answer, send_all: Any) -> Any:
        current_call.set(call)
        result: Any = None
        raised: BaseException | None = None
        sent = False
        try:
            async with self._free:
                result = ending_forks(action)()
                if inspect.isasyncgen(result):
                    result, sent = await send_all(result), True
                elif inspect.isawaitable(result):
                    result = await result
            end_fork()
        except BaseException as error:  # none may end the loop
            end_fork(error)
            raised = error
        return answer(lambda: _again(result, raised), sent)


def _again(result: Any, raised: BaseException | None) -> Any:
    if isinstance(raised, asyncio.CancelledError):
        raise Interrupted
    if raised is not None:
        raise raised
    return result


_NOT_CONSTRUCTED = object()


class NoObject(Exception):
    """This worker has not constructed the actor's object: it replaced one that died."""


class ActorLeft(Exception):
    """The actor ended itself, by ``sys.exit()`` or ``exit_actor()``."""


class CallStopped(Exception):
    """The call was cancelled while it ran."""


class TaskHost:
    """The worker's side of calls. ``call`` below is the number of a stored value: what to call, and its arguments."""

    current: TaskHost | None = None  # in a worker of an executor

    def __init__(self, context: WorkerContext) -> None:
        self._value = context.value
        self._object: Any = _NOT_CONSTRUCTED
        self._constructing = self.is_again = False
        self._side: Any = None  # where methods run that run at the same time
        self._here = -1  # the call that this worker's own thread is at
        self._cancelled: set[int] = set()
        self._thread = threading.get_ident()
        TaskHost.current = self
        keep_restored()
        self.core = WorkerCore(context)
        self.core.cancelled = self._raise_if_cancelled
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, self._on_signal)

    def run(self, call: int, label: str, returns: Returns = None) -> OutOfBandPickle:
        """Call a function with arguments; return what it returned."""

        def action() -> Any:
            return called(*self._value(call, True))

        return self._answer(call, label, action, returns)

    def construct(self, call: int, label: str, concurrency: int | None = None, again: bool = False) -> None:
        """Construct the actor's object. ``concurrency``: how many methods may run at the same time, if said.

        ``again``: it takes the place of one that died.
        """
        self._constructing, self.is_again = True, again
        function, *given = self._value(call, False)
        is_async = isinstance(function, type) and has_async_methods(function)

        async def begin(made: Any) -> None:
            await called(made.__init__, *given)
            self._object = made

        def action() -> Any:
            if is_async and inspect.iscoroutinefunction(function.__init__):
                return begin(function.__new__(function))
            self._object = called(function, *given)
            return None

        def answer(act: Callable[[], Any], sent: bool = False) -> Any:
            return self._answer(call, label, act, None)

        if is_async or (concurrency or 1) > 1:
            self._side = Coroutines(concurrency or 1000) if is_async else Threads(concurrency or 1)
        (self._side.submit(call, action, answer, None).result() if is_async else answer(action)).close()

    def call(
        self, call: int, label: str, returns: Returns = None
    ) -> OutOfBandPickle | Future[OutOfBandPickle]:
        """Call a method of the actor's object."""
        if self._object is _NOT_CONSTRUCTED:
            raise NoObject(label)

        def action() -> Any:
            method, args, kwargs, *strict = self._value(call, True)
            if method == "__ray_ready__":
                return True
            if method == "__ray_terminate__":
                raise SystemExit
            if method == "__ray_call__":
                return called(args[0], (self._object, *args[1:]), kwargs)
            return called(getattr(self._object, method), args, kwargs, *strict)

        if self._side is None:
            return self._answer(call, label, action, returns, in_actor=True)
        future: Future[OutOfBandPickle] = self._side.submit(
            call,
            action,
            lambda act, sent: self._answer(call, label, act, None if sent else returns, in_actor=True),
            lambda values: self._send_all(call, label, values, stream=returns == "stream"),
        )
        return future

    @property
    def is_actor(self) -> bool:
        """Whether this worker has an actor's object, or is making it."""
        return self._constructing or self._object is not _NOT_CONSTRUCTED

    def is_cancelled(self, call: int) -> bool:
        """Say whether somebody has cancelled a call that goes on."""
        return call in self._cancelled

    def feed(self, kind: str, *args: Any) -> None:
        """What the driver says while calls run; in the thread that listens."""
        if kind == "cancel":
            self._cancel(args[0])
        else:
            (self.core.on_ready if kind == "ready" else self.core.on_go)(*args)

    # ------------------------------------------------------------ one call

    def _answer(
        self, call: int, label: str, action: Callable[[], Any], returns: Returns, *, in_actor: bool = False
    ) -> OutOfBandPickle:
        """Return what ``action`` returns, packed; raise ``CallFailed`` for whatever it raises."""
        here = threading.get_ident() == self._thread
        token = current_call.set(call)
        if here:
            self._here = call
        try:
            if here:
                self._raise_if_cancelled()
            value = ending_forks(action)()
            if in_actor and call in self._cancelled:
                raise CallStopped(label)
            if returns is not None:
                ending_forks(self._send_pieces)(call, label, value, returns)
                value = None
            elif inspect.iscoroutine(value):
                value.close()
                raise BadReturn(
                    f"{label} is async, and only methods of actors may be async. Call asyncio.run(…) in a function "
                    "that is not async."
                )
            return self._packed(label, value)
        except Interrupted:
            raise CallStopped(label) from None
        except (ActorLeft, CallStopped, CallFailed):
            raise
        except SystemExit as error:
            if in_actor or self.is_actor:
                if error.code:  # not on purpose: it may be made anew
                    flush_streams()
                    os._exit(error.code if isinstance(error.code, int) else 1)
                self._object = _NOT_CONSTRUCTED  # nothing that was sent is begun any more
                raise ActorLeft(label) from None
            raise CallFailed(packed_error(label, error)) from None
        except BaseException as error:
            raise CallFailed(packed_error(label, error)) from None
        finally:
            if here:
                self._here = -1
                self._cancelled.discard(call)
            current_call.reset(token)
            self.core.settle()

    def _packed(self, label: str, value: Any) -> OutOfBandPickle:
        try:
            with collecting_references() as references:
                packed = pack(value)
            packed = msgspec.structs.replace(packed, links=tuple(holder_of(ref).number for ref in references))
        except Exception as error:
            raise BadReturn(
                f"{label} returned a {type(value).__name__} that cannot travel back: {name_of(error)}: "
                f"{words(error)}. {_advice(value)}"
            ) from None
        self.core.settle()  # while the value is alive, and the references in it
        return packed

    def _send_pieces(self, call: int, label: str, value: Any, returns: Returns) -> None:
        """Send several results, or as many as a generator yields, each as it comes: what it fails after is there."""
        stream = returns == "stream"
        if stream and not isinstance(value, Iterator):
            raise BadReturn(
                f"{label} must be a generator to return a stream, but it returned a {type(value).__name__}."
            )
        if returns == 0:
            return
        if not isinstance(value, Iterable):
            raise WrongCount(
                f"{label} has num_returns={returns}, and returned a {type(value).__name__}: return a tuple."
            )
        values, sent = value if isinstance(value, Iterator) else list(value), 0
        if isinstance(values, list) and len(values) != returns:
            raise WrongCount(f"{label} has num_returns={returns}, and returned {len(values)} values.")
        for each in values:
            if not stream and sent == returns:
                raise WrongCount(f"{label} has num_returns={returns}, and yielded more.")
            self._send_piece(call, label, sent, each)
            sent += 1
        if not stream and sent != returns:
            raise WrongCount(f"{label} has num_returns={returns}, and yielded {sent} values.")

    async def _send_all(self, call: int, label: str, values: AsyncIterator[Any], *, stream: bool) -> None:
        """Send what an async generator yields."""
        if not stream:
            raise BadReturn(f"{label} is an async generator: it needs num_returns='streaming'.")
        index = 0
        async for each in values:
            self._send_piece(call, label, index, each)
            index += 1

    def _send_piece(self, call: int, label: str, index: int, value: Any) -> None:
        end_fork()  # of a generator
        packed = self._packed(label, value)
        with self.core.uninterrupted():
            self.core.line.note_packed(("piece", call, index), packed)

    # ------------------------------------------------------------ cancelling

    def _cancel(self, call: int) -> None:
        if self._side is not None and self._side.cancel(call):
            return
        self._cancelled.add(call)
        if self.is_actor and call == self._here:  # a method that runs goes on; it may ask whether it should
            return
        if self._here == call and self._thread == threading.main_thread().ident:
            with contextlib.suppress(ProcessLookupError):
                signal.pthread_kill(self._thread, signal.SIGUSR2)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.core.sending:
            self._raise_if_cancelled()

    def _raise_if_cancelled(self) -> None:
        if self._here in self._cancelled:
            self._cancelled.discard(self._here)
            raise Interrupted


class WrongCount(BadReturn):
    """A function did not return as many values as it was said to."""


def has_async_methods(cls: type) -> bool:
    """Say whether a class has methods that are to be awaited."""
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for name in dir(cls)
        if (each := inspect.getattr_static(cls, name, None)) is not None
    )


def call_each(function: Callable[..., Any], chunk: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a function once for each tuple of arguments; for ``Executor.map`` with a ``chunksize``."""
    return [called(function, args, {}) for args in chunk]


def called(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], strict: bool = False
) -> Any:
    """Call a function with the values of references that are arguments by themselves.

    ``strict``: arrays among the arguments are read-only, as Ray's are; else they are copies, and the function's own.
    """
    args = [_resolved(value) for value in args]
    kwargs = {name: _resolved(value) for name, value in kwargs.items()}
    if strict:
        read_only([args, kwargs])
    return function(*args, **kwargs)


def _resolved(value: Any) -> Any:
    return value.get() if isinstance(value, Ref) else value


def _advice(value: Any) -> str:
    if inspect.isgenerator(value):
        return "Return list(…) of it: a call has one result, unless it has num_returns='streaming'."
    return "Return plain data, such as arrays, tables, lists and dicts."
