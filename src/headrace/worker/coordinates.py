"""Coordinates of rows: described for messages, encoded for other processes, compared with what a reader has got."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.core.source_ports import Source, row_range
from headrace.core.work import Delivered, Reject, Shard, Split
from headrace.errors import ShardFailed
from headrace.worker.rows import Rows, RowSpan


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    split: Split
    first: int
    count: int
    index: bytes | None
    last: int | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[list[_Packed]])


def encode_spans(spans: Sequence[Sequence[RowSpan]]) -> bytes:
    """Encode the coordinates of the rows of several batches."""
    return _encoder.encode(
        [
            [
                _Packed(
                    span.split,
                    span.first,
                    span.count,
                    span.index.tobytes() if span.index is not None else None,
                    span.last,
                )
                for span in each
            ]
            for each in spans
        ]
    )


def decode_spans(data: bytes) -> list[tuple[RowSpan, ...]]:
    """Decode what ``encode_spans`` made."""
    return [
        tuple(
            RowSpan(
                span.split,
                span.first,
                span.count,
                np.frombuffer(span.index, np.int64) if span.index is not None else None,
                span.last,
            )
            for span in each
        )
        for each in _decoder.decode(data)
    ]


def where(source: Source, rows: Rows) -> str:
    """Say in words from where to where rows stand."""
    if not rows.spans:
        return "no rows"
    first, last = rows.spans[0], rows.spans[-1]
    return row_range(
        source.locate(first.split, first.bounds()[0]), source.locate(last.split, last.bounds()[1])
    )


def delivered_after(rows: Rows, shard: Shard, before: Delivered | None) -> Delivered | None:
    """Return what a reader has got of the shard with these rows, after those ``before``."""
    end: Delivered | None = None
    for span in reversed(rows.spans):
        if not span.count:
            continue
        split, (row, count) = shard.splits.index(span.split), _tail(span)
        if end is None:
            end = Delivered(split, row, 0)
        if (split, row) != (end.split, end.row):
            return end
        end = Delivered(split, row, end.count + count)
        if count < span.count:
            return end
    if end is None or before is None or (before.split, before.row) != (end.split, end.row):
        return end or before
    return Delivered(end.split, end.row, end.count + before.count)


class UndeliveredRows:
    """Removes the rows that a reader has already got, all up to ``after``, from those of an attempt."""

    def __init__(self, shard: Shard, after: Delivered) -> None:
        self._shard = shard
        self._after = after
        self._left = after.count  # rows still to come of the last one that the reader has something of

    def cut(self, rows: Rows) -> Rows:
        """Return the rows that the reader has not got yet."""
        at = 0
        for span in rows.spans:
            skipped = self._skipped(span)
            at += skipped
            if skipped < span.count:
                break
        return rows.cut(at, len(rows)) if at < len(rows) else rows.cut(0, 0)

    def _skipped(self, span: RowSpan) -> int:
        after, split = self._after, self._shard.splits.index(span.split)
        if split != after.split:
            return span.count if split < after.split else 0
        if span.last is not None:
            if span.first <= after.row < span.last:
                raise ShardFailed(
                    f"A worker died at part {self._shard.label()} of the input, after some of its rows had been "
                    "given to the reader. The function does not return one row per row, and got other batches the "
                    "second time. So it is not known which rows the reader has already. Set batch_size to a number; "
                    "or write the rows to a folder, where unfinished work does not count."
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


def _tail(span: RowSpan) -> tuple[int, int]:
    """Return the last row that a span stands for, and how many rows at its end came of that."""
    if span.last is not None:
        return span.last, span.count
    numbers = span.numbers()
    last = int(numbers[-1])
    return last, span.count - int(np.searchsorted(numbers, last))


class PlacesInPart:
    """Where in the part of an attempt rows stand that were rejected: how many of its rows come before each.

    Rows leave the steps in their order, and what became of a row is known before any behind it leaves them. One of
    which that turns out to be otherwise has no place.
    """

    def __init__(self, splits: Sequence[Split]) -> None:
        self._order = {split: at for at, split in enumerate(splits)}
        self._seen = 0  # rejects
        self._waiting: list[tuple[int, int]] = []  # those beyond the rows that have come, in order
        self._last = (-1, -1)  # the row that came last
        self._places: dict[tuple[int, int], int | None] = {}
        self._rows = 0

    def note(self, rejects: Sequence[Reject], part: Rows) -> None:
        """Take the next rows of the part, and all rejects until now."""
        self._take(rejects)
        for span in part.spans:
            if not span.count:
                continue
            split, (first, last) = self._order.get(span.split, -1), span.bounds()
            count = bisect_right(self._waiting, (split, last)) if self._waiting else 0
            for key in self._waiting[:count]:
                within = key >= (split, first)
                at = int(np.searchsorted(span.numbers(), key[1])) if within else 0
                self._places[key] = None if within and span.last is not None else self._rows + at
            del self._waiting[:count]
            self._last = split, last
            self._rows += span.count

    def end(self, rejects: Sequence[Reject]) -> None:
        """All rows have come."""
        self._take(rejects)
        self._places.update(dict.fromkeys(self._waiting, self._rows))

    def of(self, reject: Reject) -> int | None:
        """Return the place of a reject; None if it is not known."""
        return self._places[self._key(reject)]

    def _take(self, rejects: Sequence[Reject]) -> None:
        new = [self._key(reject) for reject in rejects[self._seen :]]
        self._seen = len(rejects)
        self._places.update(dict.fromkeys((key for key in new if key <= self._last), None))
        if new:
            self._waiting = sorted([*self._waiting, *(key for key in new if key > self._last)])

    def _key(self, reject: Reject) -> tuple[int, int]:
        return self._order.get(reject.split, -1), reject.row
