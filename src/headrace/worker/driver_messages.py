"""What a worker reports to its driver: calls, retries, batch sizes, and that it is ready."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.objects import kinds_of, object_indices, packed
from headrace.core.engine_ports import WorkerContext
from headrace.core.events import WorkerReady
from headrace.core.work import CallEnded, CallStarted, ObjectsPickled, PoisonRows
from headrace.worker.calls import PendingCall
from headrace.worker.out_of_memory import is_lasting
from headrace.worker.rows import Rows

_numbers = itertools.count()


class CallWatch:
    """Reports calls over a shard's rows, and splits batches that have suspects."""

    def __init__(
        self, poison_rows: PoisonRows, worker: int, shard: int, notify: Callable[[Any], None]
    ) -> None:
        self._suspects = poison_rows.suspects
        self._worker = worker
        self._shard = shard
        self._notify = notify

    @property
    def has_suspects(self) -> bool:
        """True if some rows are suspected."""
        return bool(self._suspects)

    def report_start(self, step: str, rows: Rows) -> int:
        """Report that a call starts; return its number."""
        number = next(_numbers)
        stretches = tuple((span.split, *span.bounds()) for span in rows.spans if span.count)
        self._notify(CallStarted(self._worker, number, self._shard, step, stretches, len(rows)))
        return number

    def report_end(self, number: int) -> None:
        """Report that a call has ended."""
        self._notify(CallEnded(self._worker, number))

    def split_suspects(self, part: Rows) -> Iterator[Rows]:
        """Split a batch: few suspects at a time, separate from the other rows."""
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
        """Return, for each row, the size of the batch that it may be in; None if there are no suspects."""
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


class WatchedCall:
    """A call that reports its end to the driver."""

    def __init__(self, call: PendingCall, end: Callable[[], None]) -> None:
        self._call = call
        self._end = end

    def result(self) -> Any:
        """See ``PendingCall``."""
        try:
            value = self._call.result()
        except BaseException as error:
            if not is_lasting(error):  # else the worker is about to end over it
                self._end()
            raise
        self._end()
        return value

    def cancel(self) -> None:
        """See ``PendingCall``."""
        self._call.cancel()

    def wait(self) -> None:
        """See ``PendingCall``."""
        self._call.wait()


def packed_for(
    context: WorkerContext, batches: list[pa.RecordBatch]
) -> tuple[list[pa.RecordBatch], tuple[int, ...]]:
    """Pickle the Python objects of batches of one schema that leave this process; return which columns have some."""
    indices = object_indices(batches[0].schema)
    if not indices or context.here:
        return batches, ()
    made = [packed(batch, indices) for batch in batches]
    for i in indices:
        context.notify(ObjectsPickled(batches[0].schema.names[i], kinds_of(batches[0].column(i))))
    return made, indices


def report_ready(context: WorkerContext, seconds: float) -> None:
    """Tell the driver that a worker can work, and how long its classes and models took."""
    context.notify(WorkerReady(context.worker, seconds))
