"""Batches that know where their rows come from, and what is done with such coordinates.

A row's coordinate is (split, row number within it). It is kept as runs, so that carrying it costs nothing per
row; only a filter stores one integer for each row that it keeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import concat, empty_columns, filtered, taken
from headrace.core.arrow.widening import widened
from headrace.core.source_ports import Source, row_range
from headrace.core.work import Delivered, Reject, Shard, Split
from headrace.errors import ShardFailed


class RowSpan(msgspec.Struct, frozen=True):
    """``count`` neighbouring rows of one batch.

    ``index`` None: they are the rows ``first`` … ``first + count - 1`` of ``split``. An integer array: row i
    is row ``index[i]``. ``last`` set: each came from one of the rows ``first`` … ``last``, it is not known which.
    """

    split: Split
    first: int
    count: int
    index: np.ndarray[Any, np.dtype[np.int64]] | None = None
    last: int | None = None

    def cut(self, start: int, stop: int) -> RowSpan:
        """Return the part of the span from ``start`` to ``stop``."""
        if self.last is not None:
            return RowSpan(self.split, self.first, stop - start, None, self.last)
        if self.index is not None:
            return RowSpan(self.split, self.first, stop - start, self.index[start:stop])
        return RowSpan(self.split, self.first + start, stop - start)

    def numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the row number of each row."""
        if self.index is not None:
            return self.index
        return np.arange(self.first, self.first + self.count, dtype=np.int64)

    def bounds(self) -> tuple[int, int]:
        """Return the first and the last row number that this span may stand for."""
        if self.last is not None:
            return self.first, self.last
        if self.index is not None:
            return (int(self.index.min()), int(self.index.max())) if len(self.index) else (0, 0)
        return self.first, self.first + max(self.count, 1) - 1


class Rows(msgspec.Struct, frozen=True):
    """A batch and its rows' coordinates; ``spans`` add up to the batch's length.

    ``side_columns`` are columns of the same rows that no step sees; they travel with the rows until the end.
    """

    batch: pa.RecordBatch
    spans: tuple[RowSpan, ...]
    side_columns: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def with_batch(self, batch: pa.RecordBatch) -> Rows:
        """Return other values for the same rows."""
        return Rows(batch, self.spans, self.side_columns)

    def without_side_columns(self, batch: pa.RecordBatch) -> Rows:
        """Return other values for the same rows, without side columns."""
        return Rows(batch, self.spans)

    def with_side_columns(self, columns: pa.RecordBatch) -> Rows:
        """Return the same rows with more side columns."""
        if self.side_columns is not None:
            names = [*self.side_columns.schema.names, *columns.schema.names]
            columns = pa.RecordBatch.from_arrays([*self.side_columns.columns, *columns.columns], names=names)
        return Rows(self.batch, self.spans, columns)

    def can_join(self, other: Rows) -> bool:
        """Say whether the other rows have the same columns, and so can be put behind these."""
        mine, others = (
            each.side_columns.schema if each.side_columns is not None else None for each in (self, other)
        )
        return bool(mine == others)

    def cut(self, start: int, stop: int) -> Rows:
        """Return the rows from ``start`` to ``stop``, without a copy."""
        if start == 0 and stop >= len(self):
            return self
        side_columns = self.side_columns.slice(start, stop - start) if self.side_columns is not None else None
        return Rows(self.batch.slice(start, stop - start), tuple(_cut(self.spans, start, stop)), side_columns)

    def pieces(self, size: int) -> Iterator[Rows]:
        """Cut the rows to pieces of ``size`` rows, the last one apart."""
        return (self.cut(at, min(at + size, len(self))) for at in range(0, len(self), size))

    def halves(self) -> tuple[Rows, Rows]:
        """Cut the rows in two."""
        half = len(self) // 2
        return self.cut(0, half), self.cut(half, len(self))

    def masked(self, batch: pa.RecordBatch, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """Return the rows for which ``mask`` is true; ``batch`` holds them already."""
        spans, at = [], 0
        for span in self.spans:
            part = mask[at : at + span.count]
            at += span.count
            kept = int(part.sum())
            if span.last is not None:
                spans.append(RowSpan(span.split, span.first, kept, None, span.last))
            elif kept:
                spans.append(RowSpan(span.split, 0, kept, span.numbers()[part]))
        side_columns = filtered(self.side_columns, mask) if self.side_columns is not None else None
        return Rows(batch, tuple(spans), side_columns)

    def repeated(self, batch: pa.RecordBatch, counts: Sequence[int]) -> Rows:
        """Return rows of which ``counts[i]`` come from row i."""
        spans, at = [], 0
        for span in self.spans:
            part = np.asarray(counts[at : at + span.count], np.int64)
            at += span.count
            total = int(part.sum())
            if span.last is not None:
                spans.append(RowSpan(span.split, span.first, total, None, span.last))
            elif total:
                spans.append(RowSpan(span.split, 0, total, np.repeat(span.numbers(), part)))
        side_columns = self.side_columns
        if side_columns is not None:
            index = np.repeat(np.arange(len(self), dtype=np.int64), np.asarray(counts, np.int64))
            side_columns = taken(side_columns, index)
        return Rows(batch, tuple(spans), side_columns)

    def with_unknown_origin(self, batch: pa.RecordBatch) -> Rows:
        """Return rows that the user's function made of these; which one came from which is not known."""
        if not self.spans:
            return Rows(batch, ())
        firsts, lasts = zip(*(span.bounds() for span in self.spans), strict=True)
        split = self.spans[0].split
        same = all(span.split == split for span in self.spans)
        last = max(lasts) if same else lasts[0]
        return Rows(batch, (RowSpan(split, min(firsts) if same else firsts[0], batch.num_rows, None, last),))


def _cut(spans: Sequence[RowSpan], start: int, stop: int) -> Iterator[RowSpan]:
    at = 0
    for span in spans:
        low, high = max(start - at, 0), min(stop - at, span.count)
        if low < high:
            yield span.cut(low, high)
        at += span.count


def join(parts: Sequence[Rows]) -> Rows:
    """Put rows that fit each other end to end."""
    if len(parts) == 1:
        return parts[0]
    side_columns = [part.side_columns for part in parts if part.side_columns is not None]
    return Rows(
        concat(widened([part.batch for part in parts])),
        tuple(span for part in parts for span in part.spans),
        concat(side_columns) if side_columns else None,
    )


def merged_spans(spans: Sequence[RowSpan]) -> tuple[RowSpan, ...]:
    """Return the same coordinates in fewer spans: neighbours that go on where the one before ends become one."""
    fewer: list[RowSpan] = []
    picked: list[RowSpan] = []  # neighbours with an index, to be joined at once

    def flush() -> None:
        if picked:
            numbers = np.concatenate([span.numbers() for span in picked])
            fewer.append(RowSpan(picked[0].split, 0, len(numbers), numbers))
            picked.clear()

    for span in spans:
        if span.index is not None:
            if picked and picked[0].split != span.split:
                flush()
            picked.append(span)
            continue
        flush()
        before = fewer[-1] if fewer else None
        plain = before is not None and before.index is None and before.last is None and span.last is None
        if (
            plain
            and before is not None
            and (before.split, before.first + before.count) == (span.split, span.first)
        ):
            fewer[-1] = RowSpan(span.split, before.first, before.count + span.count)
        else:
            fewer.append(span)
    flush()
    return tuple(fewer)


def rebatch(rows: Iterator[Rows], size: int) -> Iterator[Rows]:
    """Cut a stream into batches of exactly ``size`` rows, the last one apart; order and content are kept.

    A batch without rows passes only if it is the first, so that its schema is not lost. A change of schema
    ends the batch that was being filled.
    """
    return recut(rows, lambda part: size)


def recut(rows: Iterator[Rows], size: Callable[[Rows], int]) -> Iterator[Rows]:
    """Cut a stream as ``rebatch`` does, where ``size`` is called for each batch with the rows that were read last.

    After a change of size a batch may be shorter, so that those behind it begin where a part does: else each of them
    would have to be joined from two.
    """
    waiting: list[Rows] = []
    held = 0
    wanted = 0
    moved = False
    first = True
    for part in rows:
        if not len(part):
            if first:
                yield part
            first = False
            continue
        first = False
        if waiting and not waiting[0].can_join(part):
            yield join(waiting)
            waiting, held = [], 0
        at = 0
        while at < len(part):
            if not held:
                before, wanted = wanted, size(part)
                moved = moved or before not in (0, wanted)
            stop = min(at + wanted - held, len(part))
            waiting.append(part.cut(at, stop))
            held += stop - at
            at = stop
            if held >= wanted:
                yield join(waiting)
                waiting, held = [], 0
        if moved and len(part) >= wanted:
            if waiting:
                yield join(waiting)
            waiting, held, moved = [], 0, False
    if waiting:
        yield join(waiting)


# ---------------------------------------------------------------- coordinates in messages and other processes


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    split: Split
    first: int
    count: int
    index: bytes | None
    last: int | None


_MARK = "__headrace_beside__:"  # how names of side columns begin in a block


def pack_side_columns(rows: Rows) -> Rows:
    """Return rows whose batch has the side columns as its last columns, for another process."""
    if rows.side_columns is None:
        return rows
    schema = rows.batch.schema
    for field in rows.side_columns.schema:
        schema = schema.append(field.with_name(_MARK + field.name))
    columns = [*rows.batch.columns, *rows.side_columns.columns]
    return Rows(pa.RecordBatch.from_arrays(columns, schema=schema), rows.spans)


def unpack_side_columns(rows: Rows) -> Rows:
    """Undo ``pack_side_columns``."""
    names = rows.batch.schema.names
    if not names or not names[-1].startswith(_MARK):
        return rows
    first = next(i for i, name in enumerate(names) if name.startswith(_MARK))
    side_columns = rows.batch.select(list(range(first, len(names))))
    return Rows(
        rows.batch.select(list(range(first))) if first else empty_columns(len(rows)),
        rows.spans,
        side_columns.rename_columns([name.removeprefix(_MARK) for name in names[first:]]),
    )


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
