"""Ends an attempt before the end of its shard, so that what is finished can be committed.

After some seconds the attempt reads no more rows: the steps give what they hold, the part is closed, and the rest of
the shard is another shard. The rows are parted where all steps have used up what they got, so that batches of a size
that the user said are cut as if nothing had happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from millrace.core.work import Remainder, Shard, Split
from millrace.plan.cuts import sizes_of
from millrace.plan.logical import Filter, FlatMap, MapRows, Step
from millrace.run.batching import BATCH_ROWS, FIRST_ROWS
from millrace.run.guard import Meter
from millrace.run.reading import Read
from millrace.run.rows import Rows, Span

LOOK = 30  # looks at the clock, at least, in the time after which a part is closed
NEARLY = 10  # a shard is not parted for its last tenth of that time
PATIENCE = (
    1 / 3
)  # of that time: so long the end of a batch is sought where nobody knows how many rows come to it


@dataclass(slots=True)
class Speed:
    """Input rows per second of a worker, as it was of late; 0 before it has done any."""

    rate: float = 0.0


class Closing:
    """Hands the rows of a shard on, and stops after ``every`` seconds; 0: never.

    ``unit``: of how many rows what is handed on has to be a multiple. ``ready`` says whether a part may be closed at
    all. ``rest`` is what remains, if something does. ``speed`` outlives the attempt.
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
        clock: Callable[[], float],
    ) -> None:
        self._shard = shard
        self._meter = meter
        self._every = every
        self._unit = max(unit, 1)
        self._speed = speed
        self._ready = ready
        self._clock = clock
        self._sized = [(i, size) for i, step in enumerate(steps) for size in sizes_of([step])]
        by_row = any(isinstance(step, (MapRows, FlatMap, Filter)) for step in steps)
        self._portion = unit or (1 if by_row else FIRST_ROWS)  # while nobody knows how long rows take
        self._begun = 0.0
        self._given = 0
        self._at = 0  # the number of the split whose rows are handed on
        self._exact = True
        self._seeking = False  # it is time, and the rows are to be parted as soon as that can be
        self._follows: tuple[int, int] | None = (
            None  # the split and the row that come next, if none is left out
        )
        self.rest: Remainder | None = None

    # ------------------------------------------------------------ rows of the source

    def reads(self, reads: Iterator[Read]) -> Iterator[Read]:
        """Hand on what is read from the source."""
        if not self._every:
            yield from reads
            return
        self._begun = self._clock()
        with contextlib.closing(reads):  # type: ignore[type-var]
            for read in reads:
                if not len(read.rows):
                    yield read
                    continue
                yield from self._parted(read)
                if self.rest is not None:
                    return

    def _parted(self, read: Read) -> Iterator[Read]:
        rows, rejects, at = read.rows, list(read.rejects), 0
        while at < len(rows):
            over = self._is_over()
            stop = at if over else min(at + self._room(len(rows) - at), len(rows))
            split, first = _first(rows.cut(stop, len(rows))) if stop < len(rows) else (None, 0)
            passed = [reject for reject in rejects if split is None or reject.row < first]
            if over:
                assert split is not None
                self._part(self._number(split), first)
                if passed:
                    yield Read(rows.cut(0, 0), tuple(passed))
                return
            rejects = [reject for reject in rejects if reject not in passed]
            part = rows.cut(at, stop)
            self._given += len(part)
            at = stop
            yield Read(part, tuple(passed))

    def _number(self, split: Split) -> int:
        while self._shard.splits[self._at] != split:
            self._at += 1
        return self._at

    # ------------------------------------------------------------ rows of the stage before

    def rows(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Hand on rows of the stage before.

        They can be parted as long as they are the rows of the source, each once: only then somebody knows what the
        stages before have done for those that were handed on.
        """
        if not self._every:
            yield from rows
            return
        self._begun = self._clock()
        self._follows = (0, self._shard.splits[0].low) if self._shard.splits else None
        for part in rows:
            at = 0
            while at < len(part):
                if self._exact and self._is_over():
                    self._follow((), part.cut(at, len(part)).spans[0])
                if self._exact and self._is_over() and self._follows is not None:
                    self._part(*self._follows)
                    self._meter.read_rows = self._given
                    return
                stop = min(at + (self._room(len(part) - at) if self._exact else len(part)), len(part))
                piece = part.cut(at, stop)
                self._follow(piece.spans)
                self._given += len(piece)
                at = stop
                yield piece

    def inexact(self) -> None:
        """Rows have failed in a stage before."""
        self._exact = False

    def _follow(self, spans: Sequence[Span], following: Span | None = None) -> None:
        """Note how far the rows of the source have come; ``following`` are the next."""
        for span in (*spans, *((following,) if following is not None else ())):
            if not self._exact or self._follows is None:
                return
            if not span.count:
                continue
            number, row = self._skip_ended(*self._follows)
            split = self._shard.splits[number] if number < len(self._shard.splits) else None
            fits = split == span.split and span.last is None and _is_run(span, row)
            self._exact = fits
            if fits:
                self._follows = number, row + (0 if span is following else span.count)

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

    def _part(self, number: int, row: int) -> None:
        self.rest = Remainder(number, row, self._given)

    def _is_over(self) -> bool:
        """Say whether no more rows are to be handed on."""
        elapsed = self._clock() - self._begun
        self._measure(elapsed)
        left = self._shard.rows - self._given if self._shard.rows >= 0 else None
        nearly = left is not None and left < self._speed.rate * self._every / NEARLY
        self._seeking = bool(self._given) and elapsed >= self._every and not nearly and self._ready()
        if not self._seeking or self._given % self._unit:
            return False
        return self._is_used_up() or elapsed >= self._every * (1 + PATIENCE)

    def _is_used_up(self) -> bool:
        """Say whether each step with a size has made whole batches of all rows that came to it."""
        return not any(self._meter.steps[i][0] % size for i, size in self._sized)

    def _measure(self, elapsed: float) -> None:
        if self._meter.done_rows and elapsed > 0:
            self._speed.rate = self._meter.done_rows / elapsed

    def _room(self, rows: int) -> int:
        """Return how many of so many rows to hand on before the next look at the clock."""
        if self._seeking:
            missing = min((-self._meter.steps[i][0] % size or size for i, size in self._sized), default=1)
            return min(rows, self._to_unit(0 if self._given % self._unit else missing))
        if self._speed.rate:
            room = int(self._speed.rate * self._every / LOOK)
        else:
            room = self._portion
            self._portion = min(2 * self._portion, BATCH_ROWS)
        return rows if room >= rows else self._to_unit(max(room, 1))

    def _to_unit(self, rows: int) -> int:
        """Return so many rows, or a few more, so that what was handed on is a multiple of the unit."""
        return rows + -(self._given + rows) % self._unit


def _first(rows: Rows) -> tuple[Split, int]:
    span = next(span for span in rows.spans if span.count)
    return span.split, int(span.numbers()[0])


def _is_run(span: Span, row: int) -> bool:
    """Say whether a span has neighbouring rows, from ``row`` on."""
    numbers = span.numbers()
    return int(numbers[0]) == row and bool((numbers[1:] - numbers[:-1] == 1).all())
