"""In which order requests that wait get their places. What comes out is in the order of the rows all the same.

As only so many rows are read ahead, nobody is overtaken by more than those.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from typing import Generic, TypeVar

ORDERS = ("arrival", "prefix", "longest")
LEAST_LEARNT = 32
"""So many have to have ended before anything is learnt of them."""

T = TypeVar("T")


class Order(Generic[T]):
    """Things that wait, each with the text of its request; ``name`` is one of ``ORDERS``.

    ``"arrival"``: who came first is first. ``"prefix"``: texts that begin alike follow one another, by the alphabet,
    and from its start again when that is through. ``"longest"``: by arrival, but of the last, the longest, so that
    what takes long ends in time. The longest is who will probably take longest: by the length of its text, and by how
    long others of about this length took. As long as few have ended, it is the longest text.

    >>> def played(name, first, more):
    ...     order = Order(name)
    ...     for text in first:
    ...         order.add(text, text)
    ...     said = [order.next()]
    ...     order.input_ends(True)
    ...     for text in more:
    ...         order.add(text, text)
    ...     return [*said, *(order.next() for _ in range(len(order)))]
    >>> played("longest", ["b", "a", "c", "ddd"], ["ee"])
    ['b', 'ddd', 'ee', 'a', 'c']
    >>> played("prefix", ["b1", "c1", "b2"], ["a1", "b3"])
    ['b1', 'b2', 'b3', 'c1', 'a1']
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: list[tuple[float, str, int, int, T]] = []  # a heap: rank, text, number, length, thing
        self._number = 0
        self._round, self._last = 0.0, ""  # through the alphabet, and where that is
        self._ended = False
        self._took: dict[
            int, tuple[int, float]
        ] = {}  # how many of about a length have ended, and their seconds
        self._means: dict[int, float] = {}  # as they were when those that wait were ranked
        self._learnt = 0
        self._ranked_at = 0  # so many had ended then

    def add(self, thing: T, text: str) -> None:
        """Have one wait."""
        self._number += 1
        rank, by = 0.0, ""
        if self._name == "prefix":
            rank, by = self._round + (text < self._last), text
        elif self._ended:
            rank = self._rank(len(text))
        heapq.heappush(self._waiting, (rank, by, self._number, len(text), thing))

    def next(self) -> T:
        """Return whose turn it is, who waits no more; called only while somebody waits."""
        self._round, self._last, _, _, thing = heapq.heappop(self._waiting)
        return thing

    def input_ends(self, ended: bool) -> None:
        """Note that no others come but those that are on their way, or that others come again."""
        self._ended = ended and self._name == "longest"
        if self._ended:
            self._rank_all()

    def learn(self, text: str, seconds: float) -> None:
        """Note how long one with this text took, from its place to its end."""
        if self._name != "longest":
            return
        count, sum_ = self._took.get(_about(len(text)), (0, 0.0))
        self._took[_about(len(text))] = count + 1, sum_ + seconds
        self._learnt += 1
        if self._ended and self._learnt >= max(LEAST_LEARNT, 2 * self._ranked_at):
            self._rank_all()

    def _rank_all(self) -> None:
        self._ranked_at = self._learnt
        if self._learnt >= LEAST_LEARNT:
            self._means = {about: sum_ / count for about, (count, sum_) in self._took.items()}
        self._waiting = [(self._rank(each[3]), *each[1:]) for each in self._waiting]
        heapq.heapify(self._waiting)

    def _rank(self, length: int) -> float:
        """Return a number below 0 that is the smaller, the longer a text of this length will probably take."""
        if not self._means:
            return -1.0 - length
        return -1.0 - self._means[min(self._means, key=lambda about: abs(about - _about(length)))]

    def __len__(self) -> int:
        return len(self._waiting)


def _about(length: int) -> int:
    """Return a number that lengths have in common of which none is more than about 1.4 times another."""
    return int(2 * math.log2(length + 1))


# ----------------------------------------------------------------
# How many requests of a worker are under way, and which is the next.


class Slots:
    """Places for requests, whose number may change; who comes first is first, or who comes again."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended: BaseException | None = None

    async def acquire(self, *, first: bool = False) -> None:
        """Wait for a place; raise what ``end`` was given."""
        self.check()
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # it was given a place at the very moment
            raise

    def check(self) -> None:
        """Raise what ``end`` was given, for one that has a place and has not begun."""
        if self._ended is not None:
            raise self._ended

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
