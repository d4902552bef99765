"""How many rows a batch has: as the user asked, by the bytes of a row, or by what a function is fastest with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.arrow.objects import bytes_of
from headrace.core.work import Split
from headrace.worker.rows import Rows, rebatch, recut

Weight = Callable[[], float]

BATCH_BYTES = 16 << 20
BATCH_ROWS = 65_536
READ_BYTES = 8 << 20
ROW_STEP_ROWS = 4_096

FIRST_ROWS = 128
_FEW_ROWS = 8
_LEAST_ROWS = 2  # code that is never tried on one row at a time often cannot do it
_CALL_OVERHEAD = 100e-6  # seconds that a batch costs outside of the function
_SHORT = 0.005  # seconds: so short a batch is no reason to stop
_LONG = 0.05  # seconds: what each batch costs does not matter any more
_SAMPLES = 3
_MORE_SAMPLES = 5  # for sizes that may turn out to be the best
_SAMPLE = 0.004  # seconds: less is at the mercy of chance
_SAMPLE_ROWS = 32  # rows differ in what they cost
_STEEP = 1.3
_CLOSE = 0.95
_NEAR = 0.9
_SAME = 0.98


def auto_size(batch: pa.RecordBatch) -> int:
    """Return how many rows like these make a batch of about 16 MiB, at most 65,536."""
    return min(BATCH_ROWS, rows_of(BATCH_BYTES, batch))


def rows_of(size: int, batch: pa.RecordBatch) -> int:
    """Return how many rows like these are about ``size`` bytes, at least one."""
    per_row = bytes_of(batch) / max(batch.num_rows, 1)
    return max(1, int(size // max(per_row, 1)))


def read_size(split: Split) -> int:
    """Return how many rows to read at a time from ``split``: 65,536, or fewer where rows are big."""
    if split.rows <= 0 or split.bytes <= 0:
        return BATCH_ROWS
    return int(min(BATCH_ROWS, max(1, READ_BYTES * split.rows // split.bytes)))


class BatchTuner:
    """Finds the number of rows at a time with which one function gets most rows done per second.

    It has no clock: ``rows`` returns how many to send, ``measured`` gets how long they took. It begins small and
    climbs by powers of two, past sizes that make no difference, until more takes longer or a batch takes its time;
    where the first batches do so already, it looks below them first. Then it tries what it left out around the best
    size, measures those that are close to it again, and settles on the largest that is as good as the best.
    """

    def __init__(self) -> None:
        self.settled: int | None = None
        self._size = 0
        self._most = BATCH_ROWS  # by the last limit
        self._bound = BATCH_ROWS  # what whole shards are enough for
        self._warmed_up = False
        self._follows_limit = False
        self._seconds: dict[int, list[float]] = {}  # per row, of each sample
        self._sample = (0, 0.0)

    @property
    def size(self) -> int:
        """How many rows a batch has now."""
        first = max(_FEW_ROWS, min(FIRST_ROWS, self._most // 16))
        return min(self._size or first, self._most)

    @property
    def rate(self) -> float:
        """Rows per second with this size, as far as it was measured."""
        return self._rates().get(self.size, 0.0)

    def rows(self, limit: int) -> int:
        """Return how many rows to send next: a power of two, and no more than ``limit``.

        A function that did best with as many as there may be follows the limit, as it comes from the bytes of a row.
        """
        self._most = _power_below(limit)
        if self._follows_limit:
            return self._most
        return self.size

    def measured(self, rows: int, seconds: float, batches: int = 1) -> bool:
        """Record that batches of ``rows`` rows took ``seconds``; True if that settled the size."""
        if self.settled is not None or rows != self.size:
            return False
        if not self._warmed_up:  # the very first call loads and compiles
            self._warmed_up = True
            return False
        count, spent = self._sample
        count, spent = count + rows * batches, spent + seconds + _CALL_OVERHEAD * batches
        self._sample = count, spent
        self._size = rows
        short = spent < _SAMPLE and count < self._most // 8
        if short or count < min(_SAMPLE_ROWS, max(1, self._most // 16)):
            return False
        samples = self._seconds.setdefault(rows, [])
        samples.append(spent / count)
        return self._go_to(self._next())

    def too_few_rows(self) -> bool:
        """Record that a whole shard had too few rows to try this size; True if that settled the size."""
        if self.settled is not None or not self._seconds:
            return False
        self._bound = max(_LEAST_ROWS, self.size // 2)
        return self._go_to(self._next())

    def _go_to(self, size: int | None) -> bool:
        if size is None:
            self._size = self.settled = self._choice()
            self._follows_limit = self.settled == self._most
            return True
        self._sample = (0, 0.0)
        self._size = size
        return False

    def _next(self) -> int | None:
        """Return the size to measure next; None if enough is known."""
        rates = self._rates()
        most = min(self._most, self._bound)
        if not rates:
            return most
        for size in (self.size, max(rates)):
            if size in rates and self._needs_sample(size, rates):
                return size
        best, least, top = max(rates, key=rates.__getitem__), min(rates), max(rates)
        if least > _LEAST_ROWS and least / rates[least] >= _LONG and rates[least] >= _NEAR * rates[best]:
            return least // 2
        if top < most and self._may_gain(rates, best):
            return min(most, 2 * top)
        return least // 2 if best == least > _LEAST_ROWS and rates[top] < _SAME * rates[best] else None

    def _needs_sample(self, size: int, rates: dict[int, float]) -> bool:
        """Say whether a size needs another sample: fewest if it is far better than others, most if it is worse."""
        others = max((rate for each, rate in rates.items() if each != size), default=0.0)
        needed = _MORE_SAMPLES if rates[size] < _CLOSE * others else _SAMPLES
        if rates[size] > _STEEP * others and size < min(self._most, self._bound):
            needed = 1
        return len(self._seconds[size]) < needed

    def _may_gain(self, rates: dict[int, float], best: int) -> bool:
        """Say whether something may be won by more rows than were tried."""
        top = max(rates)
        seconds = top / rates[top]
        enough = min(size for size in rates if rates[size] >= _SAME * rates[best])
        beyond = sum(size > enough for size in rates)
        return seconds < _SHORT or beyond < 2 or (seconds < _LONG and rates[top] >= _CLOSE * rates[best])

    def _choice(self) -> int:
        """Return the largest size that is as good as the best."""
        rates = self._rates()
        best = max(rates.values(), default=0.0)
        return max(
            (size for size, rate in rates.items() if rate >= _SAME * best),
            default=min(self._most, self._bound),
        )

    def _rates(self) -> dict[int, float]:
        """Return the rows per second of the sizes that were measured and may be used.

        Each by its best sample but one: others may be at work, on this machine or in a compiler.
        """
        most = min(self._most, self._bound)
        measured = {size: sorted(seconds) for size, seconds in self._seconds.items() if size <= most}
        return {size: 1 / seconds[min(1, len(seconds) - 1)] for size, seconds in measured.items()}


def _power_below(rows: int) -> int:
    return 1 << (max(rows, 1).bit_length() - 1)


# Where there is one: seconds at work, seconds of waiting for a core.
_WAITS = Path("/proc/thread-self/schedstat")


def own_time() -> float:
    """Return a time that stands still while this thread could run and other processes had its core.

    Long batches meet others more often than short ones do, and would seem slower than they are.
    """
    try:
        waited = int(_WAITS.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        waited = 0.0
    return time.perf_counter() - waited


class BatchTiming:
    """Measures how long the batches of one stream take; with ``tuner`` None it measures nothing.

    One batch at a time, that is the time of making its view, of the call, and of converting the result. Where several
    are in flight, calls overlap with each other and with all else, so it is the time from one that landed to the one
    that landed as many later.
    """

    def __init__(
        self, tuner: BatchTuner | None, depth: int, clock: Callable[[], float] | None = None
    ) -> None:
        self._tuner = tuner
        self._depth = depth
        self._clock = clock or (own_time if depth == 1 else time.perf_counter)
        self._spent = 0.0
        self._last: float | None = None  # when a batch landed, or the first one began
        self._since = 0.0
        self._rows = 0  # of each batch that landed since then
        self._count = 0
        self._skip = 0
        self._size = tuner.size if tuner is not None else 0
        self._measured_any = False

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Add the time of the ``with`` block to the current batch."""
        if self._tuner is None or self._tuner.settled is not None:
            yield
            return
        start = self._clock()
        if self._last is None:
            self._last = start
        try:
            yield
        finally:
            self._spent += self._clock() - start

    def batch_done(self, rows: int) -> bool:
        """Record that a batch is done; True if that settled the size."""
        spent, self._spent = self._spent, 0.0
        if self._tuner is None or self._tuner.settled is not None:
            return False
        if self._depth > 1:
            return self._overlapped(self._tuner, rows)
        return self._record(self._tuner, rows, spent, 1)

    def _overlapped(self, tuner: BatchTuner, rows: int) -> bool:
        now = self._clock()
        before, self._last = self._last, now
        if self._skip or before is None:
            self._skip = max(0, self._skip - 1)
            self._count = 0
            return False
        if rows != self._rows or not self._count:
            self._rows, self._count, self._since = rows, 0, before
        self._count += 1
        if self._count < self._depth:
            return False
        count, self._count = self._count, 0
        return self._record(tuner, rows, now - self._since, count)

    def _record(self, tuner: BatchTuner, rows: int, seconds: float, batches: int) -> bool:
        self._measured_any = self._measured_any or rows == tuner.size
        return tuner.measured(rows, seconds, batches)

    def batch_failed(self) -> None:
        """Record that a batch failed: its time, and that of batches in flight with it, is not used."""
        self._spent = 0.0
        self._skip = self._depth

    def rows_ended(self) -> bool:
        """Record that there are no more rows; True if that settled the size."""
        if self._tuner is None or self._measured_any or self._tuner.size != self._size:
            return False
        return self._tuner.too_few_rows()


# ---------------------------------------------------------------- cutting


@dataclass(frozen=True, slots=True)
class BatchCutter:
    """How the batches for one function are cut: of ``rows`` rows, of about ``bytes`` bytes, or as its tuner says.

    ``eager``: a batch whose size is ours to choose is never waited for; it is what was read.
    """

    rows: int | None
    bytes: int | None
    caller: Any  # see ``Caller``
    eager: bool

    @property
    def tuner(self) -> BatchTuner | None:
        """The tuner, if there is something for it to find."""
        free = self.rows is None and self.bytes is None and not self.eager
        return self.caller.tuner if free else None

    @property
    def look(self) -> int | None:
        """The ``look`` of ``InFlightWindow.run``."""
        return (self.rows or 1) if self.eager else None

    def cut(self, rows: Iterator[Rows], row_bytes: Weight = lambda: 0.0) -> Iterator[Rows]:
        """Cut a stream. ``row_bytes`` is asked for the bytes that each row of the part read last has in memory."""
        if self.rows is not None:
            return rebatch(rows, self.rows)
        if self.eager:
            return rows
        if self.bytes is not None:
            asked = self.bytes
            return recut(rows, _per_part(lambda part: rows_of(asked, part.batch)))
        limit = _per_part(lambda part: min(auto_size(part.batch), int(BATCH_BYTES // max(row_bytes(), 1))))
        return recut(rows, lambda part: self.caller.tuner.rows(self._fitting(limit(part))))

    def _fitting(self, limit: int) -> int:
        ceiling = self.caller.ceiling
        return max(1, limit if ceiling is None else min(limit, ceiling))


def _per_part(size: Callable[[Rows], int]) -> Callable[[Rows], int]:
    """Cache ``size`` for each batch that was read: adding up the bytes of many columns takes a while."""
    known: list[tuple[Rows, int]] = []

    def asked(part: Rows) -> int:
        if not known or known[0][0] is not part:
            known[:] = [(part, size(part))]
        return known[0][1]

    return asked
