"""How fast a run is, how long the rest takes, and what models were paid: parts of the fold of events. No clock."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from headrace.core.answered import Answered, Tokens, both
from headrace.core.events import ModelAsked, ModelPaid
from headrace.observers.run_parts import UnderWay

WINDOW = 30.0  # seconds over which speed is measured: long enough to be steady, short enough to follow
SAMPLE = 1.0  # seconds between two samples
LATE = 6.0  # seconds by which a sample may lag behind: a record has one every 5 s at least, written twice a second

_LONGEST_WINDOW = 300.0  # seconds over which the speed is measured that tells how long the rest takes
_SHORTEST_WINDOW = 1.0  # likewise, in a run of several stages
_FIRST_SAMPLES = 0.15  # seconds between the first ones

Unit = Literal["rows", "shards", "begun"]
"""``begun``: rows that went through the stages before the last."""
Point = tuple[float, int, float]  # time, what was done by then, and for how long workers had worked


class Pace:
    """Rows and shards that were done, as (time, number) for the last minutes, and since the beginning.

    >>> pace = Pace()
    >>> pace.restart(100.0, rows=0, shards=0)
    >>> pace.note(104.0, rows=200, shards=1, worked=8.0)
    >>> pace.rate(104.0, "rows"), pace.rate_of_one(104.0, "rows")
    (50.0, 25.0)
    """

    def __init__(self) -> None:
        self.begun = False  # whether anything was noted
        self.began = 0.0  # the time from which it counts
        self.since: dict[Unit, int] = {"rows": 0, "shards": 0, "begun": 0}  # what was done by then
        self._done: dict[Unit, deque[Point]] = {unit: deque() for unit in self.since}

    def restart(self, at: float, rows: int, shards: int, begun: int = 0) -> None:
        """Count from here on."""
        self.begun, self.began, self.since = True, at, {"rows": rows, "shards": shards, "begun": begun}
        for points in self._done.values():
            points.clear()
        self.note(at, rows, shards, begun=begun)

    def note(self, at: float, rows: int, shards: int, worked: float = 0.0, *, begun: int = 0) -> None:
        """Note how much is done at ``at``, for which workers have ``worked`` so many seconds, added up."""
        for points, done in zip(self._done.values(), (rows, shards, begun), strict=True):
            if not points or done != points[-1][1]:
                points.append((at, done, worked))
            while len(points) > 2 and points[1][0] <= at - _LONGEST_WINDOW - LATE:
                points.popleft()

    def due(self, at: float, noted: float) -> bool:
        """Tell whether there should be another sample, after the one at ``noted``."""
        return at - noted >= min(SAMPLE, max(_FIRST_SAMPLES, 0.1 * (at - self.began)))

    def rate(self, now: float, unit: Unit) -> float:
        """Return the rate over half a minute that ends when something was done last, or later if more is overdue."""
        points = self._points(unit)
        start, end = _window(points, now, WINDOW)
        return (points[-1][1] - done_by(points, start)[0]) / (end - start) if end > start else 0.0

    def long_rate(self, now: float, unit: Unit, since: float = 0.0) -> tuple[float, float]:
        """Return the rate that tells how long the rest takes, and the seconds that have passed since what it counts.

        It is measured over half of the time so far, as what one stage has made ahead goes faster than what follows;
        but over five minutes at most, and since ``since`` where that is some time ago. Where nothing was done in that
        time, as a batch takes long or rows are read again, the rate since the first worker was ready counts.
        """
        points = self._points(unit)
        start, end = self._long_window(points, now, _SHORTEST_WINDOW)
        gap = _longest_gap(points)
        later = [point for point in points if point[0] > since]
        enough = max(3 * _longest_gap(later), (end - self.began) / 10)
        if since > start and len(later) > 2 and end - since >= enough:
            start = since
        done = points[-1][1] - done_by(points, start)[0] if end > start else 0
        if done > 0:
            return done / (end - start), min(max(0.0, now - points[-1][0]), gap)
        done = points[-1][1] - self.since[unit] if points else 0
        return max(0, done) / (now - self.began) if now > self.began else 0.0, 0.0

    def rate_of_one(self, now: float, unit: Unit) -> float:
        """Return what one worker does in a second of its work; 0 if that is not known.

        It is measured over half of the time so far, but half a minute at least and five at most.
        """
        points = list(self._done[unit])
        start, _ = self._long_window(points, now, WINDOW)
        if not points or start >= points[-1][0]:
            start = self.began
        done, worked = done_by(points, start) if points else (0, 0.0)
        seconds = points[-1][2] - worked if points else 0.0
        return max(0.0, points[-1][1] - done) / seconds if seconds > 0 else 0.0

    def _long_window(self, points: Sequence[Point], now: float, least: float) -> tuple[float, float]:
        return _window(points, now, min(_LONGEST_WINDOW, max(least, (now - self.began) / 2)))

    def _points(self, unit: Unit) -> list[Point]:
        """Return when how much was done, as far as it is remembered.

        The first portion takes longer where several workers share the work, and does not count once there are more.
        """
        points = list(self._done[unit])
        began = bool(points) and points[0][0] == self.began
        return points[1:] if began and len(points) > 3 else points


def _window(points: Sequence[Point], now: float, seconds: float) -> tuple[float, float]:
    """Return the time that ends when something was done last, or later if more is overdue."""
    if not points:
        return now, now
    end = max(points[-1][0], now - max(LATE, _longest_gap(points)))
    return max(points[0][0], end - seconds), end


def _longest_gap(points: Sequence[Point]) -> float:
    return max((later[0] - earlier[0] for earlier, later in pairwise(points)), default=0.0)


def done_by(points: Sequence[Point], time: float) -> tuple[float, float]:
    """Return what was done at a time, and for how long workers had worked: between two points, it went on evenly."""
    after = bisect_right(points, time, key=lambda point: point[0])
    if after == 0 or after == len(points):
        return points[min(after, len(points) - 1)][1:]
    (earlier, less, worked), (later, more, longer) = points[after - 1 : after + 1]
    share = (time - earlier) / (later - earlier)
    return less + share * (more - less), worked + share * (longer - worked)


# ------------------------------------------------------------ the last shards


LAST_SHARDS = 256  # at most so many are given out
_PATIENCE = 4.0  # what is overdue for so many seconds takes another one
_ROUNDS = 8  # shards for each worker, from which on it does not matter how they fall


def is_near_the_end(shards: int, workers: int) -> bool:
    """Tell whether so few shards are left that it matters how they fall to the workers."""
    return shards <= min(_ROUNDS * workers, LAST_SHARDS)


def time_of_the_last(
    under_way: Sequence[UnderWay], waiting: Sequence[float], *, workers: int, rate: float, now: float
) -> float:
    """Return in how many seconds the last shard is done.

    Some are under way, with a size that is known; others, of so many rows each, are ``waiting``. A worker does
    ``rate`` rows a second.

    >>> under_way = [UnderWay(0, 50, 100, 10.0), UnderWay(1, 0, 100, 10.0)]
    >>> time_of_the_last(under_way, [100.0], workers=2, rate=10.0, now=10.0)
    15.0
    """
    busy: dict[int, float] = {}
    for each in under_way:
        left = max(0.0, each.of - each.rows) / rate
        begun = left - max(0.0, now - each.at)
        if begun < 0:
            begun /= -_PATIENCE
        busy[each.worker] = busy[each.worker] + left if each.worker in busy else begun
    ends = [*busy.values(), *[0.0] * (workers - len(busy))]
    heapq.heapify(ends)
    for rows in waiting:
        heapq.heapreplace(ends, ends[0] + rows / rate)
    return max(ends)


def sized(
    under_way: Sequence[UnderWay], shards: int, rows: float, planned: Sequence[int]
) -> tuple[list[UnderWay], list[float]]:
    """Return the shards under way with their sizes, and the sizes of those that wait, of ``shards`` that are left.

    ``rows`` are left in all of them, and the last ones were ``planned`` with so many each (-1: not known). Where the
    size of one is not known, it has as many rows as the others of which that is not known, on average.

    >>> sized([UnderWay(0, 50, -1, 10.0)], 3, 350.0, (100, 100, 200))
    ([UnderWay(worker=0, rows=50, of=100, at=10.0)], [100.0, 200.0])
    """
    waiting = max(0, shards - len(under_way))
    sizes = planned[len(planned) - waiting :] if waiting <= len(planned) else ()
    if not sizes or min(sizes) < 0:
        sizes = ()
    unknown = [each for each in under_way if each.of < 0]
    rest = rows - sum(max(0, each.of - each.rows) for each in under_way if each.of >= 0)
    rest = max(0.0, rest + sum(each.rows for each in unknown))
    mean = (
        max(0.0, rest - sum(sizes)) / max(1, len(unknown)) if sizes else rest / max(1, waiting + len(unknown))
    )
    known = [
        each if each.of >= 0 else UnderWay(each.worker, each.rows, round(mean), each.at) for each in under_way
    ]
    if not sizes:
        return known, [mean] * waiting
    scale = (rest - mean * len(unknown)) / max(1, sum(sizes))
    return known, [scale * each for each in sizes]


# ----------------------------------------------------------------
# What language models were asked and have answered.

_ENOUGH = 0.005  # of the rows: from then on is said what all of them may cost


class ModelUse:
    """Answers of committed rows, exactly, and what was paid for, as workers have counted it.

    What a place counts only grows, and outlives workers and drivers: the last that was heard of it is true.

    >>> use = ModelUse()
    >>> own = Tokens(answers=50, prompt=1000, completion=500, cost=0.5)
    >>> use.add(ModelAsked(0, "prompt(m)", "s", own, 50, 50, "here", own, priced=True), at=10.0, ready=0.0)
    >>> use.speed(10.0), use.paid().total.cost
    ((100.0, 50.0), 0.5)
    >>> use.expected_cost(share=0.1, before=0.0)
    5.0
    """

    def __init__(self) -> None:
        self.answered: Answered | None = None  # in committed shards
        # By place alone: all steps of a run that ask count in one.
        self._places: dict[str, ModelAsked] = {}
        self._priced = False
        self._sessions: dict[str, ModelAsked] = {}  # of the present driver
        # Time, tokens in, tokens out, of the present driver.
        self._points: deque[tuple[float, int, int]] = deque()
        self._began: float | None = None

    def begin(self, answered: Answered | None) -> None:
        """A driver begins, with what is committed."""
        self.answered = answered
        self._sessions.clear()
        self._points.clear()
        self._began = None

    def commit(self, answered: Answered | None) -> None:
        """Add the answers of a shard."""
        self.answered = both(self.answered, answered)

    def add(self, event: ModelAsked, at: float, ready: float) -> None:
        """Add what a worker says; the first of them was ``ready`` then."""
        known = self._places.get(event.place)
        if known is None or event.total.answers >= known.total.answers:
            self._places[event.place] = event
        self._priced = self._priced or event.priced
        if self._began is None:
            self._began = ready
            self._points.append((ready, 0, 0))
        self._sessions[event.session] = event
        own = self.own
        self._points.append((at, own.prompt, own.completion))
        while len(self._points) > 2 and self._points[1][0] <= at - WINDOW:
            self._points.popleft()

    @property
    def known(self) -> bool:
        """True if a language model was asked."""
        return bool(self._places) or self.answered is not None

    @property
    def own(self) -> Tokens:
        """What the present driver's workers have used."""
        return sum((each.own for each in self._sessions.values()), Tokens())

    @property
    def priced(self) -> bool:
        """True if the cost is known, as there are prices."""
        return self._priced

    def paid(self, *, ended: bool = False) -> ModelPaid:
        """Return what was used; ``ended``: nothing is under way, so what was not answered never will be."""
        total = sum((each.total for each in self._places.values()), Tokens())
        lost = sum(max(0, each.sent - each.ended) for each in self._places.values()) if ended else 0
        parts: dict[str, Tokens] = {}
        for place in self._places.values():
            for what, tokens in place.parts:
                parts[what] = parts.get(what, Tokens()) + tokens
        return ModelPaid(total, lost, self._average(), self.priced, tuple(sorted(parts.items())))

    def _average(self) -> tuple[float, float]:
        """Return tokens a second, in and out, of all that the present driver has heard."""
        own, (last, *_) = self.own, self._points[-1] if self._points else (0.0,)
        seconds = last - (self._began or 0.0)
        return (own.prompt / seconds, own.completion / seconds) if seconds > 0 else (0.0, 0.0)

    def speed(self, now: float) -> tuple[float, float]:
        """Return the tokens a second, in and out, of the last half minute."""
        if len(self._points) < 2:
            return 0.0, 0.0
        since = max(self._points[0][0], now - WINDOW)
        seconds = max(now, self._points[-1][0]) - since
        if seconds <= 0:
            return 0.0, 0.0
        read, written = done_by(list(self._points), since)
        _, all_read, all_written = self._points[-1]
        return (all_read - read) / seconds, (all_written - written) / seconds

    def expected_cost(self, share: float | None, before: float) -> float | None:
        """Return what the run will have cost in the end, if the rest is as what this driver has had answered.

        ``share`` of its rows are done, ``before`` of them before this driver; None while too little is known.
        """
        if not self.priced or share is None or share - before < _ENOUGH:
            return None
        given = sum(each.given for each in self._sessions.values())
        taken = sum(each.taken for each in self._sessions.values())
        if not given or not taken:
            return None
        own, total = self.own.cost, self.paid().total.cost
        done = own * min(1.0, taken / given)  # answers that wait for those before them are of rows to come
        return round(max(total, total - own + done * (1.0 - before) / (share - before)), 9)
