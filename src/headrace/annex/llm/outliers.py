"""Answers that take too long, and answers that are too long.

A request that takes longer than nearly all others is sent a second time: the first answer counts, both are paid for.
Answers run away that are far longer than those to other rows, or rows that cost far more than at first.
"""

from __future__ import annotations

import asyncio
import bisect
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from headrace.annex.llm.refusals import RowError
from headrace.errors import SpendingCapReached

T = TypeVar("T")

LATE_SHARE = 0.95
"""A request is late if it takes longer than this share of those before."""
LEAST = 40
"""So many answers have to be known before any request is late."""
KNOWN = 500
HEDGED = "Hedged"
"""By this name second requests are counted, beside what was sent again."""


class Latencies:
    """How long the last answers took, or how long they were: ``share`` of them are not above ``late``.

    >>> latencies = Latencies()
    >>> for seconds in range(1, 101):
    ...     latencies.add(seconds)
    >>> latencies.late, Latencies().late
    (96, None)
    """

    def __init__(self, share: float = LATE_SHARE) -> None:
        self._share = share
        self._last: deque[float] = deque(maxlen=KNOWN)
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        """Note an answer."""
        if len(self._last) == KNOWN:
            del self._sorted[bisect.bisect_left(self._sorted, self._last[0])]
        self._last.append(seconds)
        bisect.insort(self._sorted, seconds)

    @property
    def late(self) -> float | None:
        """What is late or long, if it is more; None while too little is known."""
        return self._sorted[int(self._share * len(self._sorted))] if len(self._sorted) >= LEAST else None


_losers: WeakSet[asyncio.Task[object]] = WeakSet()


def has_lost() -> bool:
    """Say whether the present task was cancelled as another was answered first."""
    return asyncio.current_task() in _losers


async def first_of(
    begin: Callable[[], Coroutine[Any, Any, T]],
    again: Callable[[], Coroutine[Any, Any, T] | None],
    late: float | None,
) -> tuple[T, bool]:
    """Return the first answer; it is asked for again after ``late`` seconds, if ``again`` gives a call.

    The other is cancelled; the second result says whether there was one. Raises what the first has failed with, where
    both do.
    """
    tasks = [asyncio.create_task(begin())]
    try:
        if late is not None and not (await asyncio.wait(tasks, timeout=late))[0]:
            second = again()
            if second is not None:
                tasks.append(asyncio.create_task(second))
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    for other in pending:
                        _losers.add(other)
                    return task.result(), bool(pending)
        return tasks[0].result(), False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


FACTOR = 10.0
"""Answers are counted that are so many times as long as others, where no factor is given."""
SHARE = 0.75
"""Others: the length that this share of them has at most. So a quarter of them may have run away."""
LEAST_TOKENS = 256
"""No answer of so many tokens has run away."""
ROWS = 200
"""So many answers are compared with the first ones."""
MOST_STOPPED = 0.1
"""A run ends if a greater share of the last answers had to be stopped."""


class Runaway(RowError):
    """The answer was stopped, as it was far longer than those to other rows."""


class Guard:
    """Learns how long the answers of a worker are, and from which length on one has run away.

    ``factor`` None: nothing is stopped, and no run ends. Answers that have run away are not learnt from.

    >>> guard = Guard(5.0)
    >>> any(guard.add(100, spent=80.0) for _ in range(40)), guard.limit
    (False, 500)
    >>> guard.add(501, spent=400.0), guard.limit
    (True, 500)
    """

    def __init__(self, factor: float | None, label: str = "") -> None:
        self.stops, self._factor, self._label = factor is not None, factor or FACTOR, label
        self._lengths = Latencies(SHARE)
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=ROWS)
        self._stopped: deque[bool] = deque(maxlen=ROWS)

    @property
    def limit(self) -> int | None:
        """The length in tokens from which on an answer has run away; None while too little is known."""
        usual = self._lengths.late
        return None if usual is None else max(LEAST_TOKENS, int(self._factor * usual))

    def add(self, written: int, *, spent: float) -> bool:
        """Note an answer that came to its end, and what it cost; say whether it has run away."""
        limit = self.limit
        far = limit is not None and written > limit
        if not far:
            self._lengths.add(written)
        self._note(spent, stopped=False)
        return far

    def stopped(self, written: int, *, spent: float) -> Runaway:
        """Note an answer that was stopped, and return the error of its row."""
        self._note(spent, stopped=True)
        return Runaway(
            f"the answer was stopped after {written:,} tokens, {self._factor:g} times as many as three of four "
            "answers before it have, or 256 (runaway=)"
        )

    def _note(self, spent: float, *, stopped: bool) -> None:
        if len(self._first) < ROWS:
            self._first.append(spent)
        else:
            self._last.append(spent)
        self._stopped.append(stopped)

    def shortened(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a request whose answer cannot run away: the same, or one with fewer ``max_tokens``.

        Raises ``SpendingCapReached`` if rows cost far more by now than the first ones.
        """
        self.check()
        limit = self.limit
        name = "max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"
        most = request.get(name)
        return request if limit is None or (most and most <= limit) else {**request, name: limit}

    def check(self) -> None:
        """Raise ``SpendingCapReached`` if rows cost far more by now than the first ones."""
        if not self.stops or len(self._stopped) < ROWS:
            return
        share, times = sum(self._stopped) / ROWS, 0.0
        if len(self._last) == ROWS and any(self._first):
            times = sum(self._last) / sum(self._first)
        if share <= MOST_STOPPED and times <= self._factor:
            return
        why = f"the last {ROWS} answers of a worker have cost {times:,.0f} times as much as its first {ROWS}"
        if share > MOST_STOPPED:
            why = f"{share:.0%} of the last {ROWS} answers of a worker had to be stopped"
        raise SpendingCapReached(
            f"{self._label} was ended, as its answers run away: {why} (runaway={self._factor:g}). See what these "
            "rows are, and what the template makes of them. If it has to be so, run the same program with a greater "
            "runaway=: it goes on, and what was answered for an output is kept."
        )


def script_of(values: Sequence[Any]) -> str:
    """Return the script of most letters of a row's texts; "" if there are none.

    >>> script_of(["नमस्ते", 7]), script_of(["Hello 世"]), script_of([1])
    ('Devanagari', 'Latin', '')
    """
    texts = [value[:2000] for value in values if isinstance(value, str)]
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    found = Counter(unicodedata.name(letter, "").split(" ")[0].capitalize() for letter in letters)
    return found.most_common(1)[0][0] if found else ""
