"""Which rows of a shard a reader has, by where they come from: so no row comes twice or never if a worker dies.

A function need not give the same again. So rows are not counted: what came of a row of the source comes from one
attempt, and what comes of the rows behind it may come from another.
"""

from __future__ import annotations

import numpy as np

from millrace.core.work import Handed, Shard
from millrace.errors import ShardFailed
from millrace.run.rows import Rows, Span


def handed(rows: Rows, shard: Shard, before: Handed | None) -> Handed | None:
    """Return how far a reader has come with these rows, after those ``before``."""
    end: Handed | None = None
    for span in reversed(rows.spans):
        if not span.count:
            continue
        split, (row, count) = shard.splits.index(span.split), _tail(span)
        if end is None:
            end = Handed(split, row, 0)
        if (split, row) != (end.split, end.row):
            return end
        end = Handed(split, row, end.count + count)
        if count < span.count:
            return end
    if end is None or before is None or (before.split, before.row) != (end.split, end.row):
        return end or before
    return Handed(end.split, end.row, end.count + before.count)


class Remaining:
    """Leaves out, of the rows of an attempt, what the reader has: all up to ``after``."""

    def __init__(self, shard: Shard, after: Handed) -> None:
        self._shard = shard
        self._after = after
        self._left = after.count  # rows still to come of the last one that the reader has something of

    def of(self, rows: Rows) -> Rows:
        """Return the rows that the reader does not have."""
        at = 0
        for span in rows.spans:
            skipped = self._skipped(span)
            at += skipped
            if skipped < span.count:
                break
        return rows.cut(at, len(rows)) if at < len(rows) else rows.cut(0, 0)

    def _skipped(self, span: Span) -> int:
        after, split = self._after, self._shard.splits.index(span.split)
        if split != after.split:
            return span.count if split < after.split else 0
        if span.last is not None:
            if span.first <= after.row < span.last:
                raise ShardFailed(
                    f"A worker died at shard {self._shard.label()}, of which rows had been handed to the reader. "
                    "The function does not give one row for each, and was given other batches the second time, so "
                    "nobody can tell which of its rows the reader has. Give it a batch_size that is a number, or "
                    "write the rows to a folder, where nothing counts before it is whole."
                )
            earlier, equal = (span.count, 0) if span.last < after.row else (0, span.count)
            equal = equal if span.last == after.row else 0
        else:
            numbers = span.numbers()
            earlier = int(np.searchsorted(numbers, after.row))
            equal = int(np.searchsorted(numbers, after.row, side="right")) - earlier
        passed = min(equal, self._left)
        self._left -= passed
        return earlier + passed


def _tail(span: Span) -> tuple[int, int]:
    """Return the last row that a span stands for, and how many rows at its end came of that."""
    if span.last is not None:
        return span.last, span.count
    numbers = span.numbers()
    last = int(numbers[-1])
    return last, span.count - int(np.searchsorted(numbers, last))
