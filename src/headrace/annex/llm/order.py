"""In which order requests that wait get their places. What comes out is in the order of the rows all the same.

As only so many rows are read ahead, nobody is overtaken by more than those.
"""

from __future__ import annotations

import asyncio
import bisect
import heapq
import math
from collections import deque
from typing import Generic, Protocol, TypeVar

ORDERS = ("arrival", "prefix", "longest")
LEAST_LEARNT = 32
"""So many have to have ended before anything is learnt of them."""

T = TypeVar("T")


class Order(Protocol[T]):
    """Things that wait, each with the text of its request."""

    def add(self, thing: T, text: str) -> None:
        """Have one wait."""
        ...

    def next(self) -> T:
        """Return whose turn it is, who waits no more; called only while somebody waits."""
        ...

    def input_ends(self, ended: bool) -> None:
        """Note that no others come but those that are on their way, or that others come again."""
        ...

    def learn(self, text: str, seconds: float) -> None:
        """Note how long one with this text took, from its place to its end."""
        ...

    def __len__(self) -> int:
        """Return how many wait."""
        ...


class ArrivalOrder(Generic[T]):
    """Who came first is first. ``longest_last``: of the last, the longest, so that what takes long ends in time.

    The longest is who will probably take longest: by the length of its text, and by how long others of about this
    length took. As long as few have ended, it is the longest text.

    >>> order = ArrivalOrder(longest_last=True)
    >>> for text in ["b", "a", "c", "ddd"]:
    ...     order.add(text, text)
    >>> first = order.next()
    >>> order.input_ends(True)
    >>> order.add("ee", "ee")
    >>> [first, *(order.next() for _ in range(4))]
    ['b', 'ddd', 'ee', 'a', 'c']
    """

    def __init__(self, *, longest_last: bool = False) -> None:
        self._waiting: deque[tuple[int, int, T]] = deque()  # length, number, thing
        self._last: list[
            tuple[float, int, int, T]
        ] = []  # a heap; the number keeps things from being compared
        self._longest_last = longest_last
        self._number = 0
        self._ended = False
        self._took: dict[
            int, tuple[int, float]
        ] = {}  # how many of about this length have ended, and their seconds
        self._means: dict[int, float] = {}  # as they were when the heap was made
        self._learnt = 0
        self._made_at = 0  # so many had ended then

    def add(self, thing: T, text: str) -> None:
        """Have one wait."""
        self._number += 1
        if self._ended:
            heapq.heappush(self._last, (self._rank(len(text)), self._number, len(text), thing))
        else:
            self._waiting.append((len(text), self._number, thing))

    def next(self) -> T:
        """Return the first, or the longest of the last."""
        return heapq.heappop(self._last)[3] if self._last else self._waiting.popleft()[2]

    def input_ends(self, ended: bool) -> None:
        """Have the longest be first from now on, or no more."""
        self._ended = ended and self._longest_last
        if self._ended:
            self._make_heap()

    def learn(self, text: str, seconds: float) -> None:
        """Note how long one took that has ended."""
        if not self._longest_last:
            return
        count, sum_ = self._took.get(_about(len(text)), (0, 0.0))
        self._took[_about(len(text))] = count + 1, sum_ + seconds
        self._learnt += 1
        if self._ended and self._learnt >= max(LEAST_LEARNT, 2 * self._made_at):
            self._make_heap()

    def _make_heap(self) -> None:
        self._made_at = self._learnt
        if self._learnt >= LEAST_LEARNT:
            self._means = {about: sum_ / count for about, (count, sum_) in self._took.items()}
        waiting = [*((length, number, thing) for _, number, length, thing in self._last), *self._waiting]
        self._last = [(self._rank(length), number, length, thing) for length, number, thing in waiting]
        self._waiting.clear()
        heapq.heapify(self._last)

    def _rank(self, length: int) -> float:
        """Return a number that is the smaller, the longer a text of this length will probably take."""
        if not self._means:
            return -float(length)
        return -self._means[min(self._means, key=lambda about: abs(about - _about(length)))]

    def __len__(self) -> int:
        return len(self._waiting) + len(self._last)


def _about(length: int) -> int:
    """Return a number that lengths have in common of which none is more than about 1.4 times another."""
    return int(2 * math.log2(length + 1))


class PrefixOrder(Generic[T]):
    """Texts that begin alike follow one another: by the alphabet, and from its start again when that is through.

    Who comes while it goes on takes part where its text has its place.

    >>> order = PrefixOrder()
    >>> for text in ["b1", "c1", "b2"]:
    ...     order.add(text, text)
    >>> first = order.next()
    >>> for text in ["a1", "b3"]:
    ...     order.add(text, text)
    >>> [first, *(order.next() for _ in range(4))]
    ['b1', 'b2', 'b3', 'c1', 'a1']
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, int, T]] = []  # sorted
        self._number = 0
        self._last: tuple[str, int] = ("", 0)

    def add(self, thing: T, text: str) -> None:
        """Have one wait."""
        self._number += 1
        bisect.insort(self._waiting, (text, self._number, thing))

    def next(self) -> T:
        """Return the one that follows the last in the alphabet."""
        place = bisect.bisect_left(self._waiting, self._last)
        text, number, thing = self._waiting.pop(place if place < len(self._waiting) else 0)
        self._last = (text, number)
        return thing

    def input_ends(self, ended: bool) -> None:
        """Change nothing."""

    def learn(self, text: str, seconds: float) -> None:
        """Learn nothing."""

    def __len__(self) -> int:
        return len(self._waiting)


def made_order(name: str) -> Order[T]:
    """Return an order by its name."""
    return PrefixOrder() if name == "prefix" else ArrivalOrder(longest_last=name == "longest")


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
