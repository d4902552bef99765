"""Divides splits by windows of their rows, see ``Split``: each is read as a whole, and cut by who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.core.work import Split


def in_windows(splits: Sequence[Split], sizes: Iterable[int]) -> Iterator[tuple[Split, ...]]:
    """Yield groups of so many rows, in order, and one of what is left. Of each split the rows have to be known.

    A split that is in one group as a whole stays as it is.

    >>> [[(split.low, split.high) for split in group] for group in in_windows([Split(0, 0, 1, 9)], [2, 4])]
    [[(0, 2)], [(2, 6)], [(6, 9)]]
    """
    group: list[Split] = []
    following = iter(sizes)
    room = next(following, None)
    for split in splits:
        low, end = split.low, split.low + split.length
        while room is not None and end - low > room:
            if room:
                group.append(msgspec.structs.replace(split, low=low, high=low + room))
            yield tuple(group)
            low += room
            group, room = [], next(following, None)
        group.append(split if low == split.low else msgspec.structs.replace(split, low=low, high=end))
        if room is not None:
            room -= end - low
    if group:
        yield tuple(group)
