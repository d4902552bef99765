"""What an attempt gets from the stage before: blocks, in their order, as they arrive."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from headrace.core.engine_ports import WorkerContext
from headrace.core.work import AttemptWaiting, Block, Task, TrailingRejects
from headrace.worker.early_end import EarlyEnd
from headrace.worker.meter import Meter
from headrace.worker.rows import Rows

WAIT_SECONDS = 0.25  # for a block, before blocks of other attempts are looked at

StageInput = Block | TrailingRejects | str | None
"""A block; rejected rows behind the last rows; the reason for which the input is lost; or None: it is at its end."""


class InputLost(Exception):
    """The input of an attempt is lost after it consumed a part of it."""


class BlockInput:
    """The blocks for one attempt. ``arriving`` is filled from another thread."""

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
        from headrace.worker.upstream import rows_of_block

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
