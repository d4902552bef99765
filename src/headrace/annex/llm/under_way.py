"""Requests of rows on their way: equal requests are asked once, by a few tasks in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.annex.llm.order import Order
from headrace.annex.llm.store import Answer
from headrace.errors import HeadraceError


@dataclass(slots=True, eq=False)
class Shared:
    """A request, what becomes of it, and how many rows wait for that."""

    key: bytes
    given: tuple[Any, ...]
    answer: asyncio.Future[Answer]
    task: asyncio.Task[None] | None = None
    waiting: int = 0

    def outcome(self) -> Answer | BaseException:
        """Return what came of it."""
        return self.answer.exception() or self.answer.result()


class UnderWay:
    """Asks for all requests in an order, with at most ``most`` tasks; a row that has no place yet costs no task.

    ``ask`` is given a request, and sees to its ``answer``; what it raises becomes that. ``ended`` gets an error that
    ends the run, and ``end`` is told of it.
    """

    def __init__(
        self,
        ask: Callable[[Shared], Awaitable[None]],
        most: int,
        order: Order[Shared],
        end: Callable[[BaseException], None],
    ) -> None:
        self._ask, self._most, self._end = ask, most, end
        self.ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.order = order  # of those that wait
        self._all: dict[bytes, Shared] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._all)

    def join(self, key: bytes, text: str, *given: Any) -> Shared:
        """Return the request with this key, which is asked if nobody has yet; ``leave`` ends that.

        ``text`` decides about its place in the order.
        """
        shared = self._all.get(key)
        if shared is None:
            answer = asyncio.get_running_loop().create_future()
            shared = self._all[key] = Shared(key, given, answer)
            self.order.add(shared, text)
            self._fill()
        shared.waiting += 1
        return shared

    async def wait(self, some: Iterable[Shared]) -> None:
        """Wait until it is known what becomes of some requests; raises what ends the run."""
        answers = (each.answer for each in some)
        together: asyncio.Future[Any] = asyncio.gather(*answers, return_exceptions=True)
        await asyncio.wait({together, self.ended}, return_when=asyncio.FIRST_COMPLETED)
        if self.ended.done():
            raise self.ended.result()

    def leave(self, shared: Shared) -> None:
        """Wait for it no more; with nobody waiting, it is given up."""
        shared.waiting -= 1
        if not shared.waiting:
            del self._all[shared.key]
            if not shared.answer.done():
                shared.answer.cancel()
                if shared.task is not None:
                    shared.task.cancel()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Let another have its turn while this one waits for something else."""
        self._most += 1
        self._fill()
        try:
            yield
        finally:
            self._most -= 1

    async def pause(self, seconds: float) -> None:
        """Wait before a request is sent again."""
        with self.aside():
            await asyncio.sleep(seconds)

    def _fill(self) -> None:
        if len(self.order) and len(self._tasks) < self._most:
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._fill()  # one that was given up may leave others in the queue

    async def _run(self) -> None:
        while len(self.order) and len(self._tasks) <= self._most:
            shared = self.order.next()
            if shared.answer.done():  # nobody waits any more
                continue
            shared.task = asyncio.current_task()
            try:
                await self._ask(shared)
            except Exception as error:
                if not shared.answer.done():
                    shared.answer.set_exception(error)
                if isinstance(error, HeadraceError) and error.ends_run and not self.ended.done():
                    self._end(error)
                    self.ended.set_result(error)
            finally:
                shared.task = None
