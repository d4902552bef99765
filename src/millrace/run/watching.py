"""Calls of the user's code that the driver is told of, so that it knows which rows a worker died or hangs over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from millrace.core.events import BatchShrunk, BatchSized, CallRetried, WorkerReady
from millrace.core.ports import WorkerContext
from millrace.core.work import Called, Calling, Caution
from millrace.run.calls import Call
from millrace.run.guard import Meter
from millrace.run.memory import is_lasting
from millrace.run.rows import Rows

_numbers = itertools.count()


class Watch:
    """Tells of calls over a shard's rows, and cuts batches where some rows are suspected."""

    def __init__(self, caution: Caution, worker: int, shard: int, tell: Callable[[Any], None]) -> None:
        self._suspects = caution.suspects
        self._worker = worker
        self._shard = shard
        self._tell = tell

    @property
    def suspicious(self) -> bool:
        """True if some rows are suspected."""
        return bool(self._suspects)

    def begins(self, step: str, rows: Rows) -> int:
        """Tell that a call begins; return its number."""
        number = next(_numbers)
        stretches = tuple((span.split, *span.bounds()) for span in rows.spans if span.count)
        self._tell(Calling(self._worker, number, self._shard, step, stretches, len(rows)))
        return number

    def ends(self, number: int) -> None:
        """Tell that a call has ended."""
        self._tell(Called(self._worker, number))

    def pieces(self, part: Rows) -> Iterator[Rows]:
        """Cut a batch: few of the suspected rows at a time, and the others apart from them."""
        sizes = self._sizes(part)
        if sizes is None:
            yield part
            return
        at = 0
        while at < len(part):
            same = np.flatnonzero(sizes[at:] != sizes[at])
            stop = min(at + int(sizes[at]), at + int(same[0]) if len(same) else len(part))
            yield part.cut(at, stop)
            at = stop

    def _sizes(self, part: Rows) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Return, for each row, how many of its like may come together; None if nothing is suspected."""
        sizes = np.full(len(part), len(part), np.int64)
        at = 0
        for span in part.spans:
            first, last = span.bounds()
            here = sizes[at : at + span.count]
            at += span.count
            for suspect in self._suspects:
                if suspect.split != span.split or suspect.last < first or suspect.first > last:
                    continue
                if span.last is None:
                    numbers = span.numbers()
                    among = (numbers >= suspect.first) & (numbers <= suspect.last)
                else:
                    among = np.ones(span.count, np.bool_)
                here[among] = np.minimum(here[among], suspect.size)
        return sizes if (sizes < len(part)).any() else None


def report(meter: Meter, context: WorkerContext, caution: Caution, shard: int) -> None:
    """Have a meter tell the driver what happens over a shard's rows; of each call, if caution asks for it."""
    worker, tell = context.worker, context.notify
    meter.shrunk = lambda step, before, now: tell(BatchShrunk(worker, step, before, now))
    meter.sized = lambda step, rows, per_second: tell(BatchSized(worker, step, rows, per_second))
    meter.retried = lambda step, error: tell(CallRetried(worker, step, error))
    if caution.watched:
        meter.watch = Watch(caution, worker, shard, tell)


def tell_ready(context: WorkerContext, seconds: float) -> None:
    """Tell the driver that a worker can work, and how long its classes and models took."""
    context.notify(WorkerReady(context.worker, seconds))


class Watched:
    """A call whose end is told."""

    def __init__(self, call: Call, end: Callable[[], None]) -> None:
        self._call = call
        self._end = end

    def result(self) -> Any:
        """See ``Call``."""
        try:
            value = self._call.result()
        except BaseException as error:
            if not is_lasting(error):  # else the worker is about to end over it
                self._end()
            raise
        self._end()
        return value

    def give_up(self) -> None:
        """See ``Call``."""
        self._call.give_up()

    def wait(self) -> None:
        """See ``Call``."""
        self._call.wait()
