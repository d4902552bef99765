"""Splits become rows with coordinates and rejects of what cannot be read; files must stay unchanged meanwhile."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import filtered
from headrace.core.arrow.forms import marked
from headrace.core.failures import errors_of_source, name_of, words
from headrace.core.rejected import UNREAD
from headrace.core.source_ports import Source
from headrace.core.work import Fault, Reject, Split
from headrace.errors import InputChanged, SourceError, UnreadableFile, data_hidden
from headrace.plan.physical import Program
from headrace.worker.batching import read_size
from headrace.worker.meter import Meter
from headrace.worker.rows import Rows, RowSpan


class Read(msgspec.Struct, frozen=True):
    """Some rows of a split, and those before or among them that could not be read."""

    rows: Rows
    rejects: tuple[Reject, ...] = ()


def read_split(
    program: Program,
    split: Split,
    meter: Meter,
    skip: Sequence[Reject] = (),
    columns: Sequence[str] | None = None,
) -> Iterator[Read]:
    """Read one split, as the program has it; without the rows in ``skip``, which are set aside.

    ``columns``: others than those of the program.
    """
    if columns is None:
        columns = program.reads[program.dataset_of([split])].columns
    tolerant = program.policy.on_error != "raise"
    poison = [reject for reject in skip if reject.split == split]
    show = program.policy.show_data
    reading = SplitReader(
        program.source,
        split,
        columns,
        tolerant=tolerant,
        skip=poison,
        show_data=show,
    )
    while True:
        with meter.timing("read"):
            read = reading.next()
        if read is None:
            return
        yield read


def reads_in_window(
    splits: Iterator[tuple[Split, Iterator[Read]]], skip: int, rows: int | None
) -> Iterator[Iterator[Read]]:
    """Leave out the first ``skip`` rows of neighbouring splits, and those behind the next ``rows``."""
    first, stop = skip, sys.maxsize if rows is None else skip + rows
    for split, reads in splits:
        yield _reads_of_rows(reads, split.low + first, split.low + stop)
        first, stop = first - split.length, stop - split.length
        if stop <= 0:
            return


def _reads_of_rows(reads: Iterator[Read], first: int, stop: int) -> Iterator[Read]:
    """Leave out what is not among the rows from number ``first`` to before ``stop``, unreadable ones included."""
    for read in reads:
        numbers = np.concatenate([span.numbers() for span in read.rows.spans] or [np.empty(0, np.int64)])
        start, end = (int(at) for at in np.searchsorted(numbers, (first, stop)))
        rejects = rejects_in_rows(read.rejects, first, stop)
        if end > start or rejects:
            yield Read(read.rows.cut(start, end), rejects)
        if len(numbers) and numbers[-1] >= stop - 1:
            return


def rejects_in_rows(rejects: Sequence[Reject], first: int, stop: int) -> tuple[Reject, ...]:
    """Return what was rejected of the rows from number ``first`` to before ``stop``."""
    found = []
    for reject in rejects:
        row, last = max(reject.row, first), min(reject.last, stop - 1)
        if (row, last) == (reject.row, reject.last):
            found.append(reject)
        elif row <= last:
            found.append(Reject(reject.split, row, last, reject.fault, reject.kept, last - row + 1))
    return tuple(found)


def count_read(reads: Iterator[Read], meter: Meter) -> Iterator[Rows]:
    """Count rows as read when they are consumed: rows prefetched after a ``limit`` was reached do not count."""
    for read in reads:
        if read.rows.spans:
            meter.begin_split(read.rows.spans[0].split)
        if read.rejects:
            lost = sum(reject.count for reject in read.rejects)
            meter.add_rejects(read.rejects)
            meter.unreadable += lost
            meter.read_rows += lost
        if len(read.rows) or not read.rejects:
            meter.read_rows += len(read.rows)
            yield read.rows


class SplitReader:
    """Reads one split, or a window of it; ``tolerant``: rows that cannot be read are rejected.

    Without ``show_data``, the rejects' messages have no values in them.
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
        self._schema_given = False  # a batch was returned, so the schema is known
        whole = _whole(split)
        self._forms = source.forms()
        bad = self._on_bad_rows if tolerant else None
        with errors_of_source(source, self._where, show_data=show_data):
            self._batches = source.read(whole, columns, read_size(split), bad)

    def next(self) -> Read | None:
        """Return the next rows; None if there are no more."""
        while self._at < self._high or not self._schema_given:
            with (
                data_hidden(hide=not self._show_data),
                errors_of_source(self._source, self._where, show_data=self._show_data),
            ):
                batch = next(self._batches, None)
                batch = marked(batch, self._forms) if batch is not None and self._forms else batch
            rejects = tuple(self._rejects)
            self._rejects.clear()
            if batch is None:
                self._batches = iter(())
                self._check_count()
                return Read(Rows(pa.record_batch({}), ()), rejects) if rejects else None
            rows, poison = self._without_skipped(self._in_window(Rows(batch, self._spans(batch))))
            if len(rows) or not batch.num_rows or rejects or poison or not self._schema_given:
                self._schema_given = True
                return Read(rows, (*rejects, *poison))
        return None

    def _check_count(self) -> None:
        """Raise unless rows read and rows reported as bad add up to the number of rows of the split."""
        self._pass_lost()
        if self._split.rows >= 0 and self._at != self._split.rows:
            raise UnreadableFile(
                f"{self._source.locate(self._split, 0)}: the file said that it has {self._split.rows:,} rows from "
                f"there on, but {self._at:,} were read. The file is damaged, or its source counts wrongly: restore "
                "the file or leave it out."
            )

    def _where(self) -> str:
        """Describe where the rows are that are read next."""
        self._pass_lost()
        return f"{self._source.locate(self._split, self._at)}, or the rows after it"

    def _pass_lost(self) -> None:
        """Count the rows that cannot be read and that are next."""
        while self._lost and self._lost[0][0] == self._at:
            self._at += self._lost.popleft()[1]

    def _in_window(self, rows: Rows) -> Rows:
        """Leave out what is not in the window."""
        if not self._split.low and self._at <= self._high:
            return rows
        numbers = np.concatenate([span.numbers() for span in rows.spans])
        low, high = np.searchsorted(numbers, (self._split.low, self._high))
        return rows.cut(int(low), int(high))

    def _without_skipped(self, rows: Rows) -> tuple[Rows, list[Reject]]:
        """Leave out the rows that are to be skipped."""
        if not self._skip or not len(rows):
            return rows, []
        numbers = np.concatenate([span.numbers() for span in rows.spans])
        mask = np.ones(len(numbers), np.bool_)
        poison = []
        for reject in self._skip:
            among = (numbers >= reject.row) & (numbers <= reject.last)
            if among.any():
                mask &= ~among
                found = numbers[among]
                poison.append(
                    msgspec.structs.replace(
                        reject, row=int(found[0]), last=int(found[-1]), count=int(among.sum())
                    )
                )
        return (rows.masked(filtered(rows.batch, mask), mask), poison) if poison else (rows, [])

    def _on_bad_rows(self, row: int, count: int, error: Exception) -> None:
        self._lost.append((row, count))
        first, last = max(row, self._split.low), min(row + count, self._high) - 1
        if first <= last:
            shown = error.without_data() if isinstance(error, SourceError) and not self._show_data else error
            fault = Fault(UNREAD, name_of(error), words(shown))
            self._rejects.append(Reject(self._split, first, last, fault, False, last - first + 1))

    def _spans(self, batch: pa.RecordBatch) -> tuple[RowSpan, ...]:
        """Return the coordinates of a batch's rows: bad rows keep their numbers."""
        left = batch.num_rows
        spans: list[RowSpan] = []
        while left or not spans:
            self._pass_lost()
            count = min(left, self._lost[0][0] - self._at) if self._lost else left
            spans.append(RowSpan(self._split, self._at, count))
            self._at += count
            left -= count
        return tuple(spans)


def _whole(split: Split) -> Split:
    """Return the split without a window."""
    return split if not split.low and split.high < 0 else msgspec.structs.replace(split, low=0, high=-1)


class InputCheck:
    """Knows which split an attempt is reading. ``begin`` may be called from another thread than the rest."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._split: Split | None = None

    def begin(self, split: Split) -> None:
        """Check the split that was read before this one."""
        self.check()
        self._split = _whole(split)

    def check(self) -> None:
        """Raise ``InputChanged`` if a file that was read since ``begin`` is not what it was then."""
        if self._split is not None:
            split = self._split
            with errors_of_source(self._source, lambda: str(self._source.locate(split, 0))):
                self._source.check_unchanged(split)

    def reason(self, error: BaseException) -> BaseException:
        """Return why an attempt failed: a file that changes while it is read may fail in any way."""
        if isinstance(error, Exception):
            try:
                self.check()
            except InputChanged as changed:
                changed.__cause__ = error
                return changed
        return error
