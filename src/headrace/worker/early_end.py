"""Where an attempt ends before the end of its shard: at a *cut*, behind which is the rest, another shard.

After some seconds an attempt is cut where it is, so that finished rows can be committed: it reads no more rows, the
steps process what they have, and the part is closed. It is cut where every step has processed whole batches, so that
batches of a size that the user chose have the same boundaries as without the early end.

And where another worker has nothing to do, an attempt is cut further ahead, and goes on up to there.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec
import numpy as np

from headrace.core.work import Remainder, Shard, Split
from headrace.plan.steps.base import Step
from headrace.worker.batching import BATCH_ROWS, FIRST_ROWS
from headrace.worker.meter import Meter
from headrace.worker.reading import Read, rejects_in_rows
from headrace.worker.rows import Rows, RowSpan

CLOCK_CHECKS = 30  # checks of the clock, at least, in the time after which the attempt ends
LAST_PART = 10  # a shard is not cut if less than a tenth of that time is left to do
GRACE = 1 / 3  # of that time: how long to wait for the end of a batch before ending without it
SOON = 1.0  # seconds of work that are done to their end even where the run is to stop
PORTION = 0.25  # seconds of work whose rows are passed at a time, at most, where others may get what is left
PORTION_BY_ROW = 0.05  # the same, where each row is a call by itself
READ_AGAIN = 1 / 2  # of the work that is left to others, at most: what they have to read once more
LATELY = 0.2  # seconds, at least, over which the speed of late is taken


class PlaceLost(Exception):
    """Some rows of an earlier stage are not those of the source, so that it is not known where to end."""


class Speed(msgspec.Struct):
    """The last known input rows per second of a worker; 0 before it has done any."""

    rate: float = 0.0


class _Stretch(msgspec.Struct, frozen=True):
    """``rows`` of a split that are ahead, from row ``first`` on; ``known``: it is no guess how many they are."""

    split: int
    first: int
    rows: int
    known: bool


class EarlyEnd:
    """Passes the rows of a shard on, up to the cut if there is one.

    It is cut after ``every`` seconds (0: never), and where others get a part of it if it is ``shared``. ``unit``: the
    number of rows passed has to be a multiple of it. ``ready`` says whether the attempt may be cut at all, and
    ``stopping`` whether it is to end now, as the run is interrupted. ``rest`` is the rest of the shard, if there is
    one. ``speed`` outlives the attempt.
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
        shared: bool = False,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float],
    ) -> None:
        self._splits = shard.splits
        self._shard_rows = shard.rows  # a sum over its splits, which may be many small files
        self._meter = meter
        self._every = every or float("inf")
        self._shared = shared
        self._unit = max(unit, 1)
        self._speed = speed
        self._ready = ready
        self._stopping = stopping
        self._clock = clock
        self._sized_steps = [(i, size) for i, step in enumerate(steps) for size in step.batch_sizes()]
        by_row = any(step.row_by_row for step in steps)
        self._portion_seconds = self._every / CLOCK_CHECKS
        if shared:
            self._portion_seconds = min(self._portion_seconds, PORTION_BY_ROW if by_row else PORTION)
        self._first_portion = unit or (1 if by_row else FIRST_ROWS)  # while the speed is unknown
        self._started_at = 0.0
        self._stopped_at = float("inf")  # seconds after the start
        self._mark = (0.0, 0)  # when the speed of late was last taken, and how many rows were done
        self._late = 0.0  # seconds of a row by then
        self._lock = threading.Lock()  # others ask in a thread of their own
        self._rows_passed = 0
        self._last_portion = 0  # of them, the last
        self._position = (0, shard.splits[0].low) if shard.splits else (0, 0)  # split and row that come next
        self._failed_to = self._position  # all rows before that were passed, or failed
        self._waiting: Rows | None = None  # rows that were read and are not passed
        self._cut: tuple[int, int] | None = None  # split and row
        self._over = False
        self._rows_match_source = True
        self._due = False  # the time is up: end as soon as batches are whole
        self.rest: Remainder | None = None

    @property
    def _is_active(self) -> bool:
        return self._shared or self._every < float("inf")

    @property
    def shard_rows(self) -> int:
        """How many rows the shard has up to the cut; -1 if nobody knows."""
        return self._shard_rows

    def splits(self) -> Iterator[Split]:
        """Yield the splits of which rows are to be passed."""
        for number, split in enumerate(self._splits):
            if self._cut is not None and self._cut <= (number, split.low):
                return
            yield split

    # ------------------------------------------------------------ rows on their way

    def pass_reads(self, reads: Iterator[Read], *, of_blocks: bool = False) -> Iterator[Read]:
        """Pass on what is read from the source, or comes from the stage before (``of_blocks``).

        What comes from there can be cut as long as it is the rows of the source, each once: only then is it known
        which rows of the source the earlier stages have processed for those that were passed. Raises ``PlaceLost``
        if it is not, and there is a cut already.
        """
        if not self._is_active:
            yield from reads
            return
        self._started_at = self._clock()
        self._mark = self._started_at, 0
        with contextlib.closing(reads):  # type: ignore[type-var]
            for read in reads:
                for part in map(Read, _by_split(read.rows)) if of_blocks else (read,):
                    yield from self._until_cut(part, of_blocks)
                    if self._over:
                        self._meter.read_rows = self._rows_passed if of_blocks else self._meter.read_rows
                        return
        with self._lock:
            self._over = True
            self._waiting = None
            if self._cut is not None:
                self.rest = Remainder(*self._cut, self._rows_passed)

    def _until_cut(self, read: Read, of_blocks: bool) -> Iterator[Read]:
        rows, rejects = read.rows, read.rejects
        number = self._position[0]
        if rows.spans or rejects:
            number = self._splits.index(rows.spans[0].split if rows.spans else rejects[0].split, number)
        with self._lock:
            if of_blocks and self._rows_match_source and not self._come_next(number, rows):
                self._lose_place("rows are missing, or were added,")
            if number > self._position[0]:
                self._position = number, self._splits[number].low
        if not self._rows_match_source:
            yield read
            return
        while True:
            with self._lock:
                if len(rows) and self._must_end():
                    self._cut_at((number, _first_number(rows)))
                stop, end = self._portion(number, rows)
                behind = rows.cut(stop, len(rows))
                until = _first_number(behind) if stop < end else self._cut_in(number)
                failed = rejects_in_rows(rejects, 0, until)
                rejects = rejects_in_rows(rejects, until, sys.maxsize)
                if failed:
                    self._failed_to = max(self._failed_to, (number, failed[-1].last + 1))
                if stop:
                    self._position = number, _last_number(rows.cut(0, stop)) + 1
                self._pass(stop, behind, at_end=stop == end < len(rows))
            if stop or failed or not len(read.rows):
                yield Read(rows.cut(0, stop), failed)
            if self._over or not len(behind):
                return
            rows = behind

    def _come_next(self, number: int, rows: Rows) -> bool:
        """Say whether these are the rows of the source that come next, each once."""
        at, row = self._skip_ended(*self._position)
        for span in rows.spans:
            if span.count and (at != number or span.last is not None or not _is_consecutive(span, row)):
                return False
            row += span.count
        return True

    def rows_failed_upstream(self) -> None:
        """Note that rows have failed in an earlier stage. Raises ``PlaceLost`` if there is a cut already."""
        with self._lock:
            self._lose_place("rows failed")

    def _lose_place(self, why: str) -> None:
        self._rows_match_source = False
        if self._cut is not None:
            raise PlaceLost(f"{why} before those that another worker was left")

    def _cut_in(self, number: int) -> int:
        """Return the first row of a split that is behind the cut."""
        if self._cut is None or self._cut[0] > number:
            return sys.maxsize
        return self._cut[1] if self._cut[0] == number else 0

    def _skip_ended(self, number: int, row: int) -> tuple[int, int]:
        splits = self._splits
        while number < len(splits):
            split = splits[number]
            if split.length < 0 or row < split.low + split.length:
                break
            number += 1
            row = splits[number].low if number < len(splits) else 0
        return number, row

    # ------------------------------------------------------------ up to the cut

    def _portion(self, number: int, rows: Rows) -> tuple[int, int]:
        """Return how many of ``rows``, which are of one split, to pass now, and how many are before the cut."""
        until, end = self._cut_in(number), len(rows)
        if until < sys.maxsize:
            end = sum(int(np.searchsorted(span.numbers(), until)) for span in rows.spans)
        return (min(self._rows_until_check(end), end) if end else 0), end

    def _cut_at(self, place: tuple[int, int]) -> None:
        self._cut = place if self._cut is None else min(self._cut, place)

    def _pass(self, count: int, waiting: Rows, *, at_end: bool) -> None:
        """So many rows are passed; ``at_end``: the next one is behind the cut."""
        self._rows_passed += count
        self._last_portion = count or self._last_portion
        self._waiting = waiting
        if self._cut is not None and (at_end or self._skip_ended(*self._position) >= self._cut):
            self._over = True
            self._waiting = None  # it keeps its whole block in memory
            self.rest = Remainder(*self._cut, self._rows_passed)

    # ------------------------------------------------------------ what others get

    def leave(self, worth: float, shares: int) -> list[Remainder]:
        """Cut the shard ahead of what is done, and return the rests, the last one first. From any thread.

        One of ``shares`` equal parts is kept of what is ahead and under way, and each of the others is a rest: as
        many as what is ahead has ``worth`` seconds of work.
        """
        with self._lock:
            if not self._shared or self._over or not self._rows_match_source or not self._ready():
                return []
            per_row, total = self._seconds_per_row(), sum(each.rows for each in self._ahead())
            if per_row * total < worth:
                return []
            shares = min(shares, 1 + int(per_row * total / worth)) if worth else shares
            under_way = min(max(0, self._rows_passed - self._meter.done_rows), self._last_portion)
            rests = []
            for kept in range(shares - 1, 0, -1):
                keep = -(-kept * (total + under_way) // shares) - under_way
                cut, keep = self._cut_ahead(keep, per_row)
                if cut is None or cut < self._failed_to:
                    break
                self._cut = cut
                if self._shard_rows >= 0:
                    self._shard_rows = self._rows_passed + keep
                rests.append(Remainder(*cut, self._rows_passed + keep))
            return rests

    def _ahead(self) -> list[_Stretch]:
        """Return what is ahead, as far as it is known to be there."""
        at, row = self._skip_ended(*max(self._position, self._failed_to))
        last, high = self._cut or (len(self._splits), 0)
        waiting = len(self._waiting) if self._waiting is not None else 0
        seen = sum(split.bytes for split in self._splits[: at + 1])
        rows_of_byte = (self._rows_passed + waiting) / seen if seen else 0.0
        found = []
        for i in range(at, min(last + 1, len(self._splits))):
            split = self._splits[i]
            first = row if i == at else split.low
            known = i in (at, last) or split.length >= 0
            if i == last:
                rows = high - first
            elif split.length >= 0:
                rows = split.low + split.length - first
            else:
                rows = waiting if i == at else max(1, int(split.bytes * rows_of_byte))
            if not known and self._unit > 1:
                break  # nobody knows where its batches end
            if rows > 0:
                found.append(_Stretch(i, first, rows, known))
        return found

    def _seconds_per_row(self) -> float:
        """Return what a row takes; more if it takes longer of late."""
        now, done = self._clock(), self._meter.done_rows
        since, before = self._mark
        if not self._rows_passed:
            return 0.0
        # Of the rows that are under way nobody knows how many are done.
        of_late = (now - since) / max((done if done > before else self._rows_passed) - before, 1)
        if done > before and now - since >= LATELY:
            self._mark, self._late = (now, done), of_late
        return max((now - self._started_at) / (done or self._rows_passed), of_late, self._late)

    def _cut_ahead(self, keep: int, per_row: float) -> tuple[tuple[int, int] | None, int]:
        """Return where to cut to keep about so many rows, and how many: between two splits if reading takes long."""
        ahead = self._ahead()
        total = sum(each.rows for each in ahead)
        keep = self._rounded_to_unit(max(keep, 0 if self._rows_passed else 1))
        reading = self._meter.seconds["read"] + self._meter.seconds["decode"]
        waiting = len(self._waiting) if self._waiting is not None else 0
        again = reading / max(1, self._splits[0].low + self._rows_passed + waiting)
        best: tuple[int, int] | None = None
        kept = before = 0
        for each in ahead:
            inside = keep - before
            cheap = again * (each.first + inside) <= READ_AGAIN * per_row * (total - keep)
            if 0 <= inside < each.rows and each.known and cheap:
                return (each.split, self._row(each, inside)), keep
            between = each.split > self._position[0] and each.first == self._splits[each.split].low
            whole = not (self._rows_passed + before) % self._unit
            if between and whole and (best is None or abs(before - keep) < abs(kept - keep)):
                best, kept = (each.split, each.first), before
            before += each.rows
        return best, kept

    def _row(self, stretch: _Stretch, inside: int) -> int:
        """Return the number of a row within a stretch: what was read already may have gaps."""
        if (
            self._splits[stretch.split].length < 0
            and self._waiting is not None
            and inside < len(self._waiting)
        ):
            return _first_number(self._waiting.cut(inside, len(self._waiting)))
        return stretch.first + inside

    # ------------------------------------------------------------ when

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
        pace = self._seconds_per_row() if self._meter.done_rows else 0.0
        if pace or self._speed.rate:
            room = int(self._portion_seconds / (pace or 1 / self._speed.rate))
        else:
            room = self._first_portion
            self._first_portion = min(2 * self._first_portion, BATCH_ROWS)
        return rows if room >= rows else self._rounded_to_unit(max(room, 1))

    def _rounded_to_unit(self, rows: int) -> int:
        """Round ``rows`` up so that the number of rows passed is a multiple of the unit."""
        return rows + -(self._rows_passed + rows) % self._unit


def _by_split(rows: Rows) -> Iterator[Rows]:
    """Cut rows where those of another split begin."""
    at = 0
    for _, spans in groupby(rows.spans, key=lambda span: span.split):
        count = sum(span.count for span in spans)
        yield rows.cut(at, at + count)
        at += count


def _first_number(rows: Rows) -> int:
    """Return the number of the first row within its split."""
    return int(next(span for span in rows.spans if span.count).numbers()[0])


def _last_number(rows: Rows) -> int:
    return int([span for span in rows.spans if span.count][-1].numbers()[-1])


def _is_consecutive(span: RowSpan, row: int) -> bool:
    """Say whether a span has consecutive rows that start at ``row``."""
    numbers = span.numbers()
    return int(numbers[0]) == row and bool((numbers[1:] - numbers[:-1] == 1).all())
