"""Batches that know where their rows come from.

A row's coordinate is (split, row number within it). It is kept as runs, so that carrying it costs nothing per
row; only a filter stores one integer for each row that it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import concat, filtered, taken
from headrace.core.arrow.widening import widened
from headrace.core.work import Split


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
