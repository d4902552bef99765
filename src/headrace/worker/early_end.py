"""Ends an attempt before the end of its shard, so that finished rows can be committed.

After some seconds the attempt reads no more rows: the steps process what they have, the part is closed, and the rest
of the shard becomes another shard. The attempt ends where every step has processed whole batches, so that batches of
a size that the user chose have the same boundaries as without the early end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from headrace.core.work import Remainder, Shard, Split
from headrace.plan.steps.base import Step
from headrace.worker.batching import BATCH_ROWS, FIRST_ROWS
from headrace.worker.meter import Meter
from headrace.worker.reading import Read
from headrace.worker.rows import Rows, RowSpan

CLOCK_CHECKS = 30  # checks of the clock, at least, in the time after which the attempt ends
LAST_PART = 10  # a shard is not cut if less than a tenth of that time is left to do
GRACE = 1 / 3  # of that time: how long to wait for the end of a batch before ending without it
SOON = 1.0  # seconds of work that are done to their end even where the run is to stop


class Speed(msgspec.Struct):
    """The last known input rows per second of a worker; 0 before it has done any."""

    rate: float = 0.0


class EarlyEnd:
    """Passes the rows of a shard on, and stops after ``every`` seconds; 0: never.

    ``unit``: the number of rows passed has to be a multiple of it. ``ready`` says whether the attempt may end
    early at all, and ``stopping`` whether it is to do so now, as the run is interrupted. ``rest`` is the rest of the
    shard, if there is one. ``speed`` outlives the attempt.
    """

    def __init__(
        self,
        shard: Shard,
        steps: Sequence[Step],
        meter: Meter,
        *,
        every: float,
        unit: int,
        speed: Speed,
        ready: Callable[[], bool],
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float],
    ) -> None:
        self._shard = shard
        self._shard_rows = shard.rows  # a sum over its splits, which may be many small files
        self._meter = meter
        self._every = every
        self._unit = max(unit, 1)
        self._speed = speed
        self._ready = ready
        self._stopping = stopping
        self._clock = clock
        self._sized_steps = [(i, size) for i, step in enumerate(steps) for size in step.batch_sizes()]
        by_row = any(step.row_by_row for step in steps)
        self._first_portion = unit or (1 if by_row else FIRST_ROWS)  # while the speed is unknown
        self._started_at = 0.0
        self._stopped_at = float("inf")  # seconds after the start
        self._rows_passed = 0
        self._split_number = 0  # index of the split whose rows are passed
        self._rows_match_source = True
        self._due = False  # the time is up: end as soon as batches are whole
        self._next_row: tuple[int, int] | None = None  # split and row that come next, if none is missing
        self.rest: Remainder | None = None

    # ------------------------------------------------------------ rows of the source

    def pass_reads(self, reads: Iterator[Read]) -> Iterator[Read]:
        """Pass on what is read from the source."""
        if not self._every:
            yield from reads
            return
        self._started_at = self._clock()
        with contextlib.closing(reads):  # type: ignore[type-var]
            for read in reads:
                if not len(read.rows):
                    yield read
                    continue
                yield from self._until_due(read)
                if self.rest is not None:
                    return

    def _until_due(self, read: Read) -> Iterator[Read]:
        rows, rejects, at = read.rows, list(read.rejects), 0
        while at < len(rows):
            must_end = self._must_end()
            stop = at if must_end else min(at + self._rows_until_check(len(rows) - at), len(rows))
            split, first = _first_row(rows.cut(stop, len(rows))) if stop < len(rows) else (None, 0)
            passed = [reject for reject in rejects if split is None or reject.row < first]
            if must_end:
                assert split is not None
                self._end_at(self._number(split), first)
                if passed:
                    yield Read(rows.cut(0, 0), tuple(passed))
                return
            rejects = [reject for reject in rejects if reject not in passed]
            part = rows.cut(at, stop)
            self._rows_passed += len(part)
            at = stop
            yield Read(part, tuple(passed))

    def _number(self, split: Split) -> int:
        while self._shard.splits[self._split_number] != split:
            self._split_number += 1
        return self._split_number

    # ------------------------------------------------------------ rows of the stage before

    def pass_rows(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Pass on rows of the stage before.

        The attempt can end early as long as these are the rows of the source, each once: only then is it known which
        rows of the source the earlier stages have processed for those that were passed.
        """
        if not self._every:
            yield from rows
            return
        self._started_at = self._clock()
        self._next_row = (0, self._shard.splits[0].low) if self._shard.splits else None
        for part in rows:
            at = 0
            while at < len(part):
                if self._rows_match_source and self._must_end():
                    self._note_position((), part.cut(at, len(part)).spans[0])
                if self._rows_match_source and self._must_end() and self._next_row is not None:
                    self._end_at(*self._next_row)
                    self._meter.read_rows = self._rows_passed
                    return
                stop = min(
                    at + (self._rows_until_check(len(part) - at) if self._rows_match_source else len(part)),
                    len(part),
                )
                piece = part.cut(at, stop)
                self._note_position(piece.spans)
                self._rows_passed += len(piece)
                at = stop
                yield piece

    def rows_failed_upstream(self) -> None:
        """Note that rows have failed in an earlier stage, so that the attempt cannot end early."""
        self._rows_match_source = False

    def _note_position(self, spans: Sequence[RowSpan], following: RowSpan | None = None) -> None:
        """Note the position in the source after these rows; ``following`` are the next."""
        for span in (*spans, *((following,) if following is not None else ())):
            if not self._rows_match_source or self._next_row is None:
                return
            if not span.count:
                continue
            number, row = self._skip_ended(*self._next_row)
            split = self._shard.splits[number] if number < len(self._shard.splits) else None
            fits = split == span.split and span.last is None and _is_consecutive(span, row)
            self._rows_match_source = fits
            if fits:
                self._next_row = number, row + (0 if span is following else span.count)

    def _skip_ended(self, number: int, row: int) -> tuple[int, int]:
        splits = self._shard.splits
        while number < len(splits):
            split = splits[number]
            if split.length < 0 or row < split.low + split.length:
                break
            number += 1
            row = splits[number].low if number < len(splits) else 0
        return number, row

    # ------------------------------------------------------------ when

    def _end_at(self, number: int, row: int) -> None:
        self.rest = Remainder(number, row, self._rows_passed)

    def _must_end(self) -> bool:
        """Say whether no more rows are to be passed."""
        elapsed = self._clock() - self._started_at
        self._update_speed(elapsed)
        left = self._shard_rows - self._rows_passed if self._shard_rows >= 0 else None
        every, worth, grace = self._every, self._every / LAST_PART, self._every * GRACE
        if self._stopping():
            self._stopped_at = min(self._stopped_at, elapsed, every)
            every, worth, grace = self._stopped_at, SOON, SOON
        nearly = left is not None and left < self._speed.rate * worth
        self._due = bool(self._rows_passed) and elapsed >= every and not nearly and self._ready()
        if not self._due or self._rows_passed % self._unit:
            return False
        return self._batches_are_whole() or elapsed >= every + grace

    def _batches_are_whole(self) -> bool:
        """Say whether each step with a batch size has processed whole batches of all its rows."""
        return not any(self._meter.steps[i].taken % size for i, size in self._sized_steps)

    def _update_speed(self, elapsed: float) -> None:
        if self._meter.done_rows and elapsed > 0:
            self._speed.rate = self._meter.done_rows / elapsed

    def _rows_until_check(self, rows: int) -> int:
        """Return how many of ``rows`` to pass before the next check of the clock."""
        if self._due:
            missing = min(
                (-self._meter.steps[i].taken % size or size for i, size in self._sized_steps), default=1
            )
            return min(rows, self._rounded_to_unit(0 if self._rows_passed % self._unit else missing))
        if self._speed.rate:
            room = int(self._speed.rate * self._every / CLOCK_CHECKS)
        else:
            room = self._first_portion
            self._first_portion = min(2 * self._first_portion, BATCH_ROWS)
        return rows if room >= rows else self._rounded_to_unit(max(room, 1))

    def _rounded_to_unit(self, rows: int) -> int:
        """Round ``rows`` up so that the number of rows passed is a multiple of the unit."""
        return rows + -(self._rows_passed + rows) % self._unit


def _first_row(rows: Rows) -> tuple[Split, int]:
    span = next(span for span in rows.spans if span.count)
    return span.split, int(span.numbers()[0])


def _is_consecutive(span: RowSpan, row: int) -> bool:
    """Say whether a span has consecutive rows that start at ``row``."""
    numbers = span.numbers()
    return int(numbers[0]) == row and bool((numbers[1:] - numbers[:-1] == 1).all())
