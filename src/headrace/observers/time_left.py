"""How long the rest of a run takes: its last shards go to workers in their order, each to the next that is free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from headrace.observers.sums import UnderWay

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
