"""A shard that does not fit into memory, divided by windows of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millrace.core.work import ErrorReport, Shard, Split

MOST = 1_000  # parts at a time; what is left over is in the last one
GUESS = 32_768  # rows, where nobody knows how many there are
UNKNOWN = 8  # windows, before one to the end, of a split whose rows nobody has counted


def parts_of(shard: Shard, rows: int, following: int) -> list[Shard]:
    """Divide a shard whose worker got through about ``rows`` rows: half as many are in a part.

    The first part keeps the shard's number, the others get those from ``following`` on. Names sort as the rows do.
    A shard of one row is returned as it is.
    """
    groups = list(_groups(shard.splits, _size(shard, rows)))
    if len(groups) > MOST:
        groups = [*groups[: MOST - 1], tuple(split for group in groups[MOST - 1 :] for split in group)]
    if len(groups) < 2:
        return [shard]
    width = len(str(len(groups) - 1))
    name = shard.name or str(shard.index)
    return [
        Shard(following + i - 1 if i else shard.index, splits, f"{name}.{i:0{width}d}")
        for i, splits in enumerate(groups)
    ]


def refused(shard: Shard, reason: str, why: str = "", row: str = "") -> ErrorReport:
    """Say that a shard does not fit, and ``why`` it is not divided; or that its only ``row`` does not."""
    if row:
        return ErrorReport(
            "OutOfMemory",
            f"A worker that works on a single row does not fit into memory: {reason}. It was {row}. Raise "
            "memory_limit=, leave the row out, or have such rows set aside (on_error='reject'). Committed shards "
            "are kept.",
        )
    what = f"shard {shard.label()}"
    return ErrorReport(
        "OutOfMemory",
        f"A worker that works on {what} does not fit into memory: {reason}. "
        + (f"{why} " if why else "")
        + "Give the step smaller batches (batch_size=), make smaller shards (shard_rows=) in a new output, or raise "
        "memory_limit=. Committed shards are kept.",
    )


def _size(shard: Shard, rows: int) -> int:
    """Return how many rows a part should have."""
    known = shard.rows
    most = -(-known // 2) if known >= 0 else min((_open(split) for split in shard.splits), default=GUESS)
    return max(1, min(rows // 2 or most, most))


def _open(split: Split) -> int:
    """Return half of a window that was tried before, where nobody knows how many rows there are."""
    return -(-split.length // 2) if split.length >= 0 else GUESS


def _groups(splits: Sequence[Split], size: int) -> Iterator[tuple[Split, ...]]:
    group: list[Split] = []
    room = size
    for split in splits:
        if split.length < 0:
            if group:
                yield tuple(group)
            group, room = [], size
            yield from ((window,) for window in _windows(split, size))
            continue
        low, high = split.low, split.low + split.length
        while low < high:
            stop = min(high, low + room)
            group.append(msgspec.structs.replace(split, low=low, high=stop))
            room -= stop - low
            low = stop
            if not room:
                yield tuple(group)
                group, room = [], size
    if group:
        yield tuple(group)


def _windows(split: Split, size: int) -> Iterator[Split]:
    """Cut a split of which nobody knows the end."""
    low = split.low
    for _ in range(UNKNOWN):
        yield msgspec.structs.replace(split, low=low, high=low + size)
        low += size
    yield msgspec.structs.replace(split, low=low, high=-1)
