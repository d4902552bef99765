"""How many requests of a worker are under way, and which is the next."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.llm.order import ArrivalOrder, Order


class Slots:
    """Places for requests, whose number may change; who waits gets one in ``order``, or first if it comes again."""

    def __init__(self, limit: int, order: Order[asyncio.Future[None]] | None = None) -> None:
        self.limit = limit
        self.taken = 0
        self.order: Order[asyncio.Future[None]] = ArrivalOrder() if order is None else order
        self._again: deque[asyncio.Future[None]] = deque()
        self._ended: BaseException | None = None

    async def acquire(self, text: str = "", *, first: bool = False) -> None:
        """Wait for a place, in the order of the texts of those who wait; raise what ``end`` was given."""
        if self._ended is not None:
            raise self._ended
        if self.taken < self.limit and not len(self):
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        if first:
            self._again.appendleft(turn)
        else:
            self.order.add(turn, text)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # it was given a place at the very moment
            raise

    def release(self) -> None:
        """Give a place back."""
        self.taken -= 1
        self.wake()

    def wake(self) -> None:
        """Give away the places that are free."""
        while len(self) and self.taken < self.limit:
            turn = self._next()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def end(self, error: BaseException) -> None:
        """Nobody gets a place any more: all who wait, and who come later, get the error."""
        self._ended = error
        while len(self):
            turn = self._next()
            if not turn.done():
                turn.set_exception(error)

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._again) + len(self.order)

    def _next(self) -> asyncio.Future[None]:
        return self._again.popleft() if self._again else self.order.next()
