"""Where the rows of a task come from: splits of the source, or blocks, which are made and read here."""

from __future__ import annotations

import queue
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import msgspec
import pyarrow as pa

from headrace.core import failpoints
from headrace.core.arrow.objects import bytes_of, kinds_of, object_indices, packed, unpacked
from headrace.core.engine_ports import WorkerContext
from headrace.core.messages import AttemptWaiting
from headrace.core.work import Block, ObjectsPickled, Split, Task, TrailingRejects
from headrace.errors import LedgerMismatch
from headrace.plan.accounts import mismatch
from headrace.worker.batching import rows_of
from headrace.worker.early_end import EarlyEnd
from headrace.worker.meter import Meter
from headrace.worker.reading import Read, reads_in_window
from headrace.worker.rows import (
    Rows,
    decode_spans,
    encode_spans,
    join,
    merged_spans,
    pack_side_columns,
    unpack_side_columns,
)

BLOCK_BYTES = 8 << 20
UNIT_BYTES = 64 << 20  # of the rows that the next stage wants at a time
SMALL_BATCH_BYTES = (
    256 << 10
)  # batches below this are joined in their block: each costs its readers some time


# ---------------------------------------------------------------- making them


class BlockSize(msgspec.Struct, frozen=True):
    """How big blocks are: about 8 MiB, and of a multiple of ``unit`` rows, if that is not 0.

    With ``rows``, they have no more than that, if a multiple of ``unit`` is less. Where a single unit is bigger than
    64 MiB, who reads the blocks puts it together.
    """

    unit: int = 0
    rows: int = 0

    def of(self, rows: Rows) -> int:
        """Return how many rows like these make a block."""
        most = rows_of(BLOCK_BYTES, rows.batch)
        if self.unit * max(bytes_of(rows.batch) / len(rows), 1) > UNIT_BYTES:
            return most
        return max((min(most, self.rows) if self.rows else most) // self.unit, 1) * self.unit


def shared_blocks(
    rows: Iterator[Rows], size: BlockSize, context: WorkerContext, meter: Meter, check: Callable[[], None]
) -> Iterator[Block]:
    """Gather rows to blocks, and lay each where the next stage can read it; ``check`` is called before."""
    counted = 0  # rows of the source that were read for the blocks so far
    for parts in _grouped(map(pack_side_columns, rows), size):
        failpoints.hit("block.made")
        check()
        with meter.timing("write"):
            batches, objects = packed_for(context, [part.batch for part in parts])
            ref = context.share(batches[0].schema, batches)
        spans = encode_spans([part.spans for part in parts])
        read = meter.source_rows
        block = Block(ref, sum(map(len, parts)), spans, meter.take_rejects(), read - counted, objects)
        counted = read
        del parts, batches
        yield block


def _grouped(rows: Iterator[Rows], size: BlockSize) -> Iterator[list[Rows]]:
    """Gather rows to blocks, each of one schema; big batches are cut."""
    return _by_rows(rows, size) if size.unit else _by_bytes(rows)


def _by_rows(rows: Iterator[Rows], size: BlockSize) -> Iterator[list[Rows]]:
    parts: list[Rows] = []
    room = 0
    for whole in rows:
        if parts and parts[0].batch.schema != whole.batch.schema:
            yield _joined(parts)
            parts = []
        at = 0
        while at < len(whole):
            room = room if parts else size.of(whole)
            part = whole.cut(at, min(len(whole), at + room))
            parts.append(part)
            at += len(part)
            room -= len(part)
            if not room:
                del part
                yield _joined(parts)
                parts = []
        del whole
    if parts:
        yield _joined(parts)


def _by_bytes(rows: Iterator[Rows]) -> Iterator[list[Rows]]:
    parts: list[Rows] = []
    held = 0
    for whole in rows:
        for part in whole.pieces(rows_of(BLOCK_BYTES, whole.batch)):
            size = bytes_of(part.batch)
            if parts and (held + size > BLOCK_BYTES or parts[0].batch.schema != part.batch.schema):
                yield _joined(parts)
                parts, held = [], 0
            parts.append(part)
            held += size
        del whole
    if parts:
        yield _joined(parts)


def _joined(parts: list[Rows]) -> list[Rows]:
    size = sum(bytes_of(part.batch) for part in parts)
    if len(parts) == 1 or size / len(parts) >= SMALL_BATCH_BYTES:
        return parts
    rows = join(parts)
    return [Rows(rows.batch, merged_spans(rows.spans))]


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


# ---------------------------------------------------------------- reading them


def rows_of_task(task: Task, context: WorkerContext, meter: Meter) -> Iterator[Rows]:
    """Return the rows of a task's blocks. All are fetched now: each must be released, however this ends."""
    with meter.timing("read"):
        taken = deque(
            (item, _fetched(item, context) if isinstance(item, Block) else []) for item in task.blocks
        )
    for item, batches in taken:
        if isinstance(item, Block):
            _check_whole(item, batches)
    return _rows_of(taken, task, meter)


def rows_of_block(block: Block, context: WorkerContext, meter: Meter) -> Iterator[Rows]:
    """Yield the rows of a block, where they lie."""
    with meter.timing("read"):
        batches = _fetched(block, context)
    _check_whole(block, batches)
    meter.add_rejects(block.rejects)
    for batch, spans in zip(batches, decode_spans(block.spans), strict=True):
        meter.read_block(block, batch.num_rows)
        yield unpack_side_columns(Rows(batch, spans))


def _fetched(block: Block, context: WorkerContext) -> list[pa.RecordBatch]:
    batches = context.fetch(block.ref)
    return [unpacked(batch, block.objects) for batch in batches] if block.objects else batches


def _check_whole(block: Block, batches: list[pa.RecordBatch]) -> None:
    """Compare the rows of a block with those that its maker put into it."""
    rows = sum(batch.num_rows for batch in batches)
    if rows != block.rows:
        raise LedgerMismatch(mismatch(f"a block of {block.rows:,} rows came to the next stage with {rows:,}"))


def _rows_of(
    taken: deque[tuple[Block | TrailingRejects, list[pa.RecordBatch]]], task: Task, meter: Meter
) -> Iterator[Rows]:
    """Yield those rows of fetched blocks that are the task's.

    The rejects of a block are counted by the task that gets its first rows.
    """
    skip, left = task.skip, sys.maxsize if task.rows is None else task.rows
    while taken:
        item, batches = taken.popleft()
        if not skip:
            meter.add_rejects(item.rejects)
        if isinstance(item, TrailingRejects):
            continue
        for batch, spans in zip(batches, decode_spans(item.spans), strict=True):
            passed = min(skip, batch.num_rows)
            part = Rows(batch, spans).cut(passed, min(batch.num_rows, passed + left))
            skip -= passed
            left -= len(part)
            meter.read_block(item, len(part))
            if len(part):
                yield unpack_side_columns(part)


# ---------------------------------------------------------------- input of a task

T = TypeVar("T")

_DEPTH = 3  # items that are read, or being read, ahead
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
    with ThreadPoolExecutor(1, "headrace-read") as thread:
        ahead = deque(thread.submit(next, items, None) for _ in range(_DEPTH))
        try:
            while (item := ahead.popleft().result()) is not None:
                ahead.append(thread.submit(next, items, None))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
            close = getattr(items, "close", None)
            if close is not None:
                close()
