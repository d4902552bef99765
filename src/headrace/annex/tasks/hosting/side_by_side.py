"""Methods of one actor that run at the same time: in threads, or as coroutines of one event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace.annex.tasks.hosting.worker_core import Interrupted, current_call
from headrace.core.process import end_fork, ending_forks

Answer = Callable[[Callable[[], Any]], Any]  # runs an action, and packs what it returns


class Threads:
    """So many threads."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="headrace-method")

    def submit(self, call: int, action: Callable[[], Any], answer: Answer, send_all: Any) -> Future[Any]:
        """Have ``answer(action)`` called in a thread."""
        return self._threads.submit(answer, action)

    def cancel(self, call: int) -> bool:
        """A thread cannot be interrupted."""
        return True


class Coroutines:
    """One event loop in a thread of its own, with so many methods at a time; plain methods run in it, too."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._running: dict[int, asyncio.Task[Any]] = {}
        self._free = asyncio.Semaphore(count)
        threading.Thread(target=self._run, name="headrace-async", daemon=True).start()

    def run(self, action: Callable[[], None]) -> None:
        """Run something in the loop, and wait for it."""

        async def act() -> BaseException | None:
            try:
                action()
            except BaseException as error:  # none may end the loop
                return error
            return None

        error = asyncio.run_coroutine_threadsafe(act(), self._loop).result()
        if error is not None:
            raise error

    def submit(self, call: int, action: Callable[[], Any], answer: Answer, send_all: Any) -> Future[Any]:
        """Have ``action``, and what it returns awaited, in the loop."""
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._begin, call, action, answer, send_all, done)
        return done

    def cancel(self, call: int) -> bool:
        """Cancel a call that is under way."""
        self._loop.call_soon_threadsafe(self._cancel, call)
        return True

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _begin(self, call: int, action: Any, answer: Answer, send_all: Any, done: Future[Any]) -> None:
        self._running[call] = self._loop.create_task(self._call(call, action, answer, send_all, done))

    def _cancel(self, call: int) -> None:
        if call in self._running:
            self._running[call].cancel()

    async def _call(self, call: int, action: Any, answer: Answer, send_all: Any, done: Future[Any]) -> None:
        current_call.set(call)
        result: Any = None
        raised: BaseException | None = None
        try:
            async with self._free:
                result = ending_forks(action)()
                if inspect.isasyncgen(result):
                    result = await send_all(result)
                    answer = _plain(answer)
                elif inspect.isawaitable(result):
                    result = await result
            end_fork()
        except BaseException as error:  # none may end the loop
            end_fork(error)
            raised = error
        finally:
            self._running.pop(call, None)
        try:
            done.set_result(answer(lambda: _again(result, raised)))
        except BaseException as error:
            done.set_exception(error)


def _again(result: Any, raised: BaseException | None) -> Any:
    if isinstance(raised, asyncio.CancelledError):
        raise Interrupted
    if raised is not None:
        raise raised
    return result


class _Sent:
    """What was sent as a stream already."""

    def __iter__(self) -> _Sent:
        return self

    def __next__(self) -> Any:
        raise StopIteration


def _plain(answer: Answer) -> Answer:
    return lambda action: answer(lambda: _Sent() if action() is None else None)
