"""A worker of a stage before the last: it makes the blocks of upstream tasks, one per call."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core import failpoints, failures
from headrace.core.arrow.objects import bytes_of, unpacked
from headrace.core.engine_ports import WorkerContext
from headrace.core.work import (
    Block,
    BlockMade,
    Split,
    TrailingRejects,
    UpstreamDone,
    UpstreamFailed,
    UpstreamOutcome,
    UpstreamTask,
)
from headrace.errors import LedgerMismatch, NodeLost
from headrace.plan.accounts import mismatch
from headrace.plan.physical import Program
from headrace.worker.coordinates import decode_spans, encode_spans, where
from headrace.worker.driver_messages import packed_for, report_ready
from headrace.worker.meter import Meter
from headrace.worker.metrics import pack_side_columns, unpack_side_columns
from headrace.worker.reading import InputCheck, Read, count_read, read_split, reads_in_window
from headrace.worker.rows import Rows, join, merged_spans
from headrace.worker.step_chain import StepChain

BLOCK_BYTES = 8 << 20
UNIT_BYTES = 64 << 20  # of the rows that the next stage wants at a time
SMALL_BATCH_BYTES = (
    256 << 10
)  # batches below this are joined in their block: each costs its readers some time


class UpstreamWorker:
    """Hosted in each worker of a stage before the last; its calls answer with the next block of a task."""

    def __init__(self, program: Program, context: WorkerContext) -> None:
        failpoints.activate(program.failpoints)
        self._program = program
        self._context = context
        self._chain = StepChain(
            program.steps,
            self._where,
            own_running=program.own_running,
            unread=program.unread,
            branches=program.branches,
            policy=program.policy,
            keys=program.source.row_keys,
            own_keys=getattr(program.source, "own_keys", None),
            folder=program.folder,
            preparing=context.preparing,
            loaded=partial(report_ready, context),
        )
        self._open: dict[int, Iterator[UpstreamOutcome]] = {}

    def make(self, task: UpstreamTask) -> UpstreamOutcome | None:
        """Begin a task, and give its first block."""
        self._open[task.number] = self._blocks(task)
        return self.more(task.number)

    def more(self, number: int) -> UpstreamOutcome | None:
        """Give the next block of a task; None if it has ended before."""
        if number not in self._open:
            return None
        try:
            outcome = next(self._open[number])
        except BaseException as error:
            if failures.is_interrupt(error) or isinstance(error, NodeLost):
                self.give_up(number)
                raise
            outcome = UpstreamFailed(number, failures.report(error))
        if not isinstance(outcome, BlockMade):
            self.give_up(number)
        return outcome

    def give_up(self, number: int) -> None:
        """Forget a task."""
        generator: Any = self._open.pop(number, None)
        if generator is not None:
            generator.close()

    def feed(self, *args: Any) -> None:
        """Shrink batches, as memory is short; nothing else is fed to these workers."""
        self._chain.shrink_batches()

    def close(self) -> None:
        """Close files and models."""
        for number in list(self._open):
            self.give_up(number)
        self._chain.close()
        self._program.source.close()

    def _blocks(self, task: UpstreamTask) -> Iterator[UpstreamOutcome]:
        inputs = InputCheck(self._program.source)
        with contextlib.closing(self._made(task, inputs)) as made:
            try:
                yield from made
            except Exception as error:
                raise inputs.reason(error)  # noqa: B904 -- it has its cause

    def _made(self, task: UpstreamTask, inputs: InputCheck) -> Generator[UpstreamOutcome, None, None]:
        failpoints.hit("upstream.started")
        meter = Meter(len(self._program.steps), travels=True)
        meter.report_to(self._context, task.poison_rows, task.shard)
        rows = self._rows_of_blocks(task, meter) if task.blocks else self._read(task, meter, inputs)
        size = BlockSize(self._program.unit, self._program.block_rows)
        counted = 0
        dataset = self._program.dataset_of(_splits_of(task))
        made = map(pack_side_columns, self._chain.run(rows, meter, task.budgets, task.ceilings, dataset))
        for parts in _grouped(made, size):
            failpoints.hit("upstream.block")
            inputs.check()
            with meter.timing("write"):
                batches, objects = packed_for(self._context, [part.batch for part in parts])
                ref = self._context.share(batches[0].schema, batches)
            spans = encode_spans([part.spans for part in parts])
            read = meter.read_rows if meter.block_source_rows is None else int(meter.block_source_rows)
            block = Block(ref, sum(map(len, parts)), spans, meter.take_rejects(), read - counted, objects)
            counted = read
            del parts, batches
            yield BlockMade(task.number, block, meter.ledger())
        inputs.check()
        yield UpstreamDone(task.number, meter.ledger(), meter.timings(), meter.take_rejects())

    def _read(self, task: UpstreamTask, meter: Meter, inputs: InputCheck) -> Iterator[Rows]:
        def read(split: Split) -> Iterator[Read]:
            inputs.begin(split)
            skip = task.poison_rows.skip
            if not self._program.carried or task.decodes:
                yield from read_split(self._program, split, meter, skip)
            else:
                from headrace.worker.copied_columns import read_for_copying  # few plans need it

                yield from read_for_copying(self._program, split, meter, skip)

        reads = iter([read(split) for split in task.splits])
        if task.skip or task.rows is not None:
            reads = reads_in_window(zip(task.splits, reads, strict=False), task.skip, task.rows)
        return count_read(chain.from_iterable(reads), meter)

    def _rows_of_blocks(self, task: UpstreamTask, meter: Meter) -> Iterator[Rows]:
        """Return the rows of the task's blocks. All are fetched now: each must be released, however this ends."""
        with meter.timing("read"):
            taken = deque(
                (item, _fetched(item, self._context) if isinstance(item, Block) else [])
                for item in task.blocks
            )
        for item, batches in taken:
            if isinstance(item, Block):
                _check_whole(item, batches)
        return _rows_of(taken, task.skip, task.rows, meter)

    def _where(self, rows: Rows) -> str:
        return where(self._program.source, rows)


def _splits_of(task: UpstreamTask) -> Sequence[Split]:
    """Return splits that rows of a task come from: one at least, if there are rows."""
    if task.splits:
        return task.splits
    blocks = (item for item in task.blocks if isinstance(item, Block))
    spans = (span for block in blocks for batch in decode_spans(block.spans) for span in batch)
    return [span.split for span in islice(spans, 1)]


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
    taken: deque[tuple[Block | TrailingRejects, list[pa.RecordBatch]]],
    skip: int,
    rows: int | None,
    meter: Meter,
) -> Iterator[Rows]:
    """Yield the rows of blocks, without the first ``skip`` and no more than ``rows``.

    The rejects of a block are counted by the task that gets its first rows.
    """
    left = sys.maxsize if rows is None else rows
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


class BlockSize(msgspec.Struct, frozen=True):
    """How big blocks are: about 8 MiB, and of a multiple of ``unit`` rows, if that is not 0.

    With ``rows``, they have no more than that, if a multiple of ``unit`` is less. Where a single unit is bigger than
    64 MiB, who reads the blocks puts it together.
    """

    unit: int = 0
    rows: int = 0

    def of(self, rows: Rows) -> int:
        """Return how many rows like these make a block."""
        most = _most(rows)
        if self.unit * max(bytes_of(rows.batch) / len(rows), 1) > UNIT_BYTES:
            return most
        return max((min(most, self.rows) if self.rows else most) // self.unit, 1) * self.unit


def _most(rows: Rows) -> int:
    """Return how many rows like these make about 8 MiB."""
    return max(1, int(BLOCK_BYTES // max(bytes_of(rows.batch) / len(rows), 1)))


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
        for part in _cut(whole):
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


def _cut(rows: Rows) -> Iterator[Rows]:
    if not len(rows):
        return
    size = _most(rows)
    for at in range(0, len(rows), size):
        yield rows.cut(at, min(at + size, len(rows)))
