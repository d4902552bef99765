"""Splits as rows that know where they come from; what the source cannot make sense of stands beside them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from millrace.core.choosing import filtered
from millrace.core.forms import forms_of, marked
from millrace.core.ports import Source
from millrace.core.work import Fault, Reject, Split
from millrace.errors import SourceError, UnreadableFile, data_hidden
from millrace.plan.physical import Program
from millrace.run.batching import read_size
from millrace.run.failures import name_of, words
from millrace.run.guard import Meter
from millrace.run.rows import Rows, Span

THE_SOURCE = "read"


@dataclass(frozen=True, slots=True)
class Read:
    """Some rows of a split, and those before or among them that could not be read."""

    rows: Rows
    rejects: tuple[Reject, ...] = ()


def read_split(program: Program, split: Split, meter: Meter, skip: Sequence[Reject] = ()) -> Iterator[Read]:
    """Read one split, as the program has it; without the rows in ``skip``, which are set aside."""
    tolerant = program.policy.on_error != "raise"
    guilty = [reject for reject in skip if reject.split == split]
    show = program.policy.show_data
    reading = Reading(program.source, split, program.columns, tolerant=tolerant, skip=guilty, show_data=show)
    while True:
        with meter.timing("read"):
            read = reading.next()
        if read is None:
            return
        yield read


def within(
    splits: Iterator[tuple[Split, Iterator[Read]]], skip: int, rows: int | None
) -> Iterator[Iterator[Read]]:
    """Leave out the first ``skip`` rows of neighbouring splits, and those behind the next ``rows``."""
    first, stop = skip, sys.maxsize if rows is None else skip + rows
    for split, reads in splits:
        yield _owned(reads, split.low + first, split.low + stop)
        first, stop = first - split.length, stop - split.length
        if stop <= 0:
            return


def _owned(reads: Iterator[Read], first: int, stop: int) -> Iterator[Read]:
    """Leave out what is not among the rows from number ``first`` to before ``stop``, unreadable ones included."""
    for read in reads:
        numbers = np.concatenate([span.numbers() for span in read.rows.spans] or [np.empty(0, np.int64)])
        start, end = (int(at) for at in np.searchsorted(numbers, (first, stop)))
        rejects = tuple(cut for reject in read.rejects for cut in _owned_reject(reject, first, stop))
        if end > start or rejects:
            yield Read(read.rows.cut(start, end), rejects)
        if len(numbers) and numbers[-1] >= stop - 1:
            return


def _owned_reject(reject: Reject, first: int, stop: int) -> Iterator[Reject]:
    row, last = max(reject.row, first), min(reject.last, stop - 1)
    if row <= last:
        yield Reject(reject.split, row, last, reject.fault, reject.kept, last - row + 1)


def counted(reads: Iterator[Read], meter: Meter) -> Iterator[Rows]:
    """Count rows as read when they are taken: what was read ahead of a ``limit`` that is used up is not."""
    for read in reads:
        if read.rejects:
            lost = sum(reject.count for reject in read.rejects)
            meter.take_in(read.rejects)
            meter.unread += lost
            meter.read_rows += lost
        if len(read.rows) or not read.rejects:
            meter.read_rows += len(read.rows)
            yield read.rows


class Reading:
    """Reads one split, or a window of it; ``tolerant``: what cannot be read is told, and left out.

    Without ``show_data``, what is told has no values in it.
    """

    def __init__(
        self,
        source: Source,
        split: Split,
        columns: Sequence[str] | None,
        *,
        tolerant: bool,
        skip: Sequence[Reject] = (),
        show_data: bool = True,
    ) -> None:
        self._source = source
        self._split = split
        self._show_data = show_data
        self._skip = list(skip)
        self._lost: deque[tuple[int, int]] = deque()  # the first of some rows that cannot be read, how many
        self._rejects: list[Reject] = []
        self._at = 0
        self._high = split.high if split.high >= 0 else sys.maxsize
        self._told = False  # whoever reads has seen the schema
        whole = msgspec.structs.replace(split, low=0, high=-1)
        self._forms = forms_of(source)
        self._batches = source.read(whole, columns, read_size(split), self._bad if tolerant else None)

    def next(self) -> Read | None:
        """Return the next rows; None if there are no more."""
        while self._at < self._high or not self._told:
            with data_hidden(hide=not self._show_data):
                batch = next(self._batches, None)
                batch = marked(batch, self._forms) if batch is not None and self._forms else batch
            rejects = tuple(self._rejects)
            self._rejects.clear()
            if batch is None:
                self._batches = iter(())
                self._check_count()
                return Read(Rows(pa.record_batch({}), ()), rejects) if rejects else None
            rows, guilty = self._without(self._within(Rows(batch, self._spans(batch))))
            if len(rows) or not batch.num_rows or rejects or guilty or not self._told:
                self._told = True
                return Read(rows, (*rejects, *guilty))
        return None

    def _check_count(self) -> None:
        """Raise unless the source gave, or told as lost, as many rows as it said that the split has."""
        while self._lost and self._lost[0][0] == self._at:
            self._at += self._lost.popleft()[1]
        if self._split.rows >= 0 and self._at != self._split.rows:
            raise UnreadableFile(
                f"{self._source.locate(self._split, 0)}: the input was planned with {self._split.rows:,} rows from "
                f"there on, and reading gave {self._at:,}. The file is damaged, or its source miscounts: restore the "
                "file or leave it out."
            )

    def _within(self, rows: Rows) -> Rows:
        """Leave out what is not in the window."""
        if not self._split.low and self._at <= self._high:
            return rows
        numbers = np.concatenate([span.numbers() for span in rows.spans])
        low, high = np.searchsorted(numbers, (self._split.low, self._high))
        return rows.cut(int(low), int(high))

    def _without(self, rows: Rows) -> tuple[Rows, list[Reject]]:
        """Leave out the rows that are to be skipped."""
        if not self._skip or not len(rows):
            return rows, []
        numbers = np.concatenate([span.numbers() for span in rows.spans])
        mask = np.ones(len(numbers), np.bool_)
        guilty = []
        for reject in self._skip:
            among = (numbers >= reject.row) & (numbers <= reject.last)
            if among.any():
                mask &= ~among
                found = numbers[among]
                guilty.append(
                    msgspec.structs.replace(
                        reject, row=int(found[0]), last=int(found[-1]), count=int(among.sum())
                    )
                )
        return (rows.keep(filtered(rows.batch, mask), mask), guilty) if guilty else (rows, [])

    def _bad(self, row: int, count: int, error: Exception) -> None:
        self._lost.append((row, count))
        first, last = max(row, self._split.low), min(row + count, self._high) - 1
        if first <= last:
            told = error.without_data() if isinstance(error, SourceError) and not self._show_data else error
            fault = Fault(THE_SOURCE, name_of(error), words(told))
            self._rejects.append(Reject(self._split, first, last, fault, False, last - first + 1))

    def _spans(self, batch: pa.RecordBatch) -> tuple[Span, ...]:
        """Number the rows of a batch: those that were left out keep their numbers."""
        left = batch.num_rows
        spans: list[Span] = []
        while left or not spans:
            while self._lost and self._lost[0][0] == self._at:
                self._at += self._lost.popleft()[1]
            count = min(left, self._lost[0][0] - self._at) if self._lost else left
            spans.append(Span(self._split, self._at, count))
            self._at += count
            left -= count
        return tuple(spans)
