"""How many requests of a worker are under way, in the order in which they were asked for."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """Places for requests, whose number may change; those who wait get them in order, or first if they come again."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended: BaseException | None = None

    async def acquire(self, *, first: bool = False) -> None:
        """Wait for a place; raise what ``end`` was given."""
        if self._ended is not None:
            raise self._ended
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)(turn)
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
        while self._waiting and self.taken < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def end(self, error: BaseException) -> None:
        """Nobody gets a place any more: all who wait, and who come later, get the error."""
        self._ended = error
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)
