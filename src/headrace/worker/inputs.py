"""Where the rows of a task come from: splits of the source, blocks that it was given, or blocks as they arrive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from headrace.core.engine_ports import WorkerContext
from headrace.core.work import AttemptWaiting, Block, Split, Task, TrailingRejects
from headrace.worker.blocks import rows_of_block
from headrace.worker.coordinates import decode_spans
from headrace.worker.early_end import EarlyEnd
from headrace.worker.meter import Meter
from headrace.worker.reading import Read, reads_in_window
from headrace.worker.rows import Rows

T = TypeVar("T")

_DEPTH = 2
_END = object()
WAIT_SECONDS = 0.25  # for a block, before blocks of other attempts are looked at

StageInput = Block | TrailingRejects | str | None
"""A block; rejected rows behind the last rows; the reason for which the input is lost; or None: it is at its end."""


class InputLost(Exception):
    """The input of an attempt is lost after it consumed a part of it."""


class ArrivingBlocks:
    """The blocks for one attempt, in their order. ``arriving`` is filled from another thread."""

    def __init__(self, arriving: queue.SimpleQueue[StageInput], context: WorkerContext, task: Task) -> None:
        self._arriving = arriving
        self._context = context
        self._task = task
        self._taken = 0
        self._at_end = False

    @property
    def taken(self) -> int | None:
        """How many blocks were taken; None if that were all."""
        return None if self._at_end else self._taken

    def rows(self, meter: Meter, early_end: EarlyEnd) -> Iterator[Rows]:
        """Yield the rows of the blocks, in order; raises ``InputLost``."""
        while True:
            with meter.timing("wait"):
                item = self._next()
            if item is None:
                self._at_end = True
                return
            if isinstance(item, str):
                raise InputLost(item)
            self._taken += 1
            if item.rejects:
                early_end.rows_failed_upstream()
            if isinstance(item, TrailingRejects):
                meter.add_rejects(item.rejects)
                continue
            yield from rows_of_block(item, self._context, meter)

    def _next(self) -> StageInput:
        self._context.release_unused()
        try:
            return self._arriving.get_nowait()
        except queue.Empty:
            self._context.notify(AttemptWaiting(self._task.shard.index, self._task.attempt, self._taken))
        while True:
            try:
                return self._arriving.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                self._context.release_unused()  # another attempt may have released a block


def reads_of_splits(
    task: Task, splits: Iterator[Split], read: Callable[[Split], Iterator[Read]]
) -> Iterator[Read]:
    """Yield what is read of a task's ``splits``, by ``read``."""
    reads: Iterator[Iterator[Read]] = map(read, splits)
    if task.skip or task.rows is not None:
        reads = reads_in_window(zip(task.shard.splits, reads, strict=False), task.skip, task.rows)
    for each in reads:
        yield from each


def splits_of(task: Task) -> Sequence[Split]:
    """Return splits that rows of a task come from: one at least, if there are rows."""
    if not task.blocks:
        return task.shard.splits
    blocks = (item for item in task.blocks if isinstance(item, Block))
    spans = (span for block in blocks for batch in decode_spans(block.spans) for span in batch)
    return [span.split for span in islice(spans, 1)]


# ---------------------------------------------------------------- reading ahead


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """Produce the next items in a thread while the current one is processed; ends with its consumer.

    With as many workers as cores such threads cost more than they save (2 to 10 % of the time), so a plan that fills
    the machine runs without them.
    """
    ready: queue.Queue[object] = queue.Queue(_DEPTH)
    stopped = threading.Event()

    def put(item: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_END)
        except BaseException as error:
            put(_Raised(error))

    thread = threading.Thread(target=produce, name="headrace-read", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
        close = getattr(items, "close", None)
        if close is not None:
            close()


class _Raised:
    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error
