"""A worker of a stage before the last: it makes blocks of pieces, one per call."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from millrace.core import failpoints
from millrace.core.ports import WorkerContext
from millrace.core.work import Block, Broken, Ended, Made, Piece, Progress, Split, Tail, Timings
from millrace.errors import LedgerMismatch, NodeLost
from millrace.plan.physical import Program
from millrace.run import failures
from millrace.run.accounts import mismatch
from millrace.run.beside import folded, unfolded
from millrace.run.guard import Meter
from millrace.run.places import packed, unpacked, where
from millrace.run.reading import Read, counted, read_split, within
from millrace.run.rows import Rows, join, merged
from millrace.run.steps import Chain
from millrace.run.unchanged import InputCheck
from millrace.run.watching import report, tell_ready

BLOCK_BYTES = 8 << 20
UNIT_BYTES = 64 << 20  # of the rows that the next stage wants at a time
SMALL = 256 << 10  # batches below this are joined in their block: each costs its readers some time


class Maker:
    """Hosted in each worker of a stage before the last; its calls answer with the next block of a piece."""

    def __init__(self, program: Program, context: WorkerContext) -> None:
        failpoints.activate(program.faults)
        self._program = program
        self._context = context
        self._chain = Chain(
            program.steps,
            self._where,
            unread=program.unread,
            policy=program.policy,
            preparing=context.preparing,
            loaded=partial(tell_ready, context),
        )
        self._open: dict[int, Iterator[Progress]] = {}

    def make(self, piece: Piece) -> Progress | None:
        """Begin a piece, and give its first block."""
        self._open[piece.number] = self._blocks(piece)
        return self.more(piece.number)

    def more(self, number: int) -> Progress | None:
        """Give the next block of a piece; None if it has ended before."""
        if number not in self._open:
            return None
        try:
            outcome = next(self._open[number])
        except BaseException as error:
            if failures.is_interrupt(error) or isinstance(error, NodeLost):
                self.give_up(number)
                raise
            outcome = Broken(number, failures.report(error))
        if not isinstance(outcome, Made):
            self.give_up(number)
        return outcome

    def give_up(self, number: int) -> None:
        """Forget a piece."""
        talk: Any = self._open.pop(number, None)
        if talk is not None:
            talk.close()

    def feed(self, *args: Any) -> None:
        """Take word that memory gets short; nothing else is fed to these."""
        self._chain.squeeze()

    def close(self) -> None:
        """Let go of files and models."""
        for number in list(self._open):
            self.give_up(number)
        self._chain.close()
        self._program.source.close()

    def _blocks(self, piece: Piece) -> Iterator[Progress]:
        inputs = InputCheck(self._program.source)
        with contextlib.closing(self._made(piece, inputs)) as made:
            try:
                yield from made
            except Exception as error:
                raise inputs.reason(error)  # noqa: B904 -- it has its cause

    def _made(self, piece: Piece, inputs: InputCheck) -> Generator[Progress, None, None]:
        failpoints.hit("piece.started")
        meter = Meter(len(self._program.steps), travels=True)
        report(meter, self._context, piece.caution, piece.shard)
        rows = self._taken(piece, meter) if piece.blocks else self._read(piece, meter, inputs)
        size = BlockSize(self._program.unit, self._program.block_rows)
        told = 0
        made = map(folded, self._chain.run(rows, meter, piece.budgets, piece.ceilings))
        for parts in _grouped(made, size):
            failpoints.hit("piece.block")
            inputs.check()
            with meter.timing("write"):
                batches = [part.batch for part in parts]
                ref = self._context.share(batches[0].schema, batches)
            spans = packed([part.spans for part in parts])
            read = meter.read_rows if meter.behind is None else int(meter.behind)
            block = Block(ref, sum(map(len, parts)), spans, meter.drained(), read - told)
            told = read
            del parts, batches
            yield Made(piece.number, block, meter.ledger())
        inputs.check()
        yield Ended(piece.number, meter.ledger(), Timings(**meter.seconds), meter.drained())

    def _read(self, piece: Piece, meter: Meter, inputs: InputCheck) -> Iterator[Rows]:
        def read(split: Split) -> Iterator[Read]:
            inputs.begin(split)
            yield from read_split(self._program, split, meter, piece.caution.skip)

        reads = iter([read(split) for split in piece.splits])
        if piece.skip or piece.rows is not None:
            reads = within(zip(piece.splits, reads, strict=False), piece.skip, piece.rows)
        return counted(chain.from_iterable(reads), meter)

    def _taken(self, piece: Piece, meter: Meter) -> Iterator[Rows]:
        """Return the rows of a piece's blocks. All are taken now: each has to be let go of, however this ends."""
        with meter.timing("read"):
            taken = deque(
                (item, self._context.take(item.ref) if isinstance(item, Block) else [])
                for item in piece.blocks
            )
        for item, batches in taken:
            if isinstance(item, Block):
                _check_whole(item, batches)
        return _rows_of(taken, piece.skip, piece.rows, meter)

    def _where(self, rows: Rows) -> str:
        return where(self._program.source, rows)


def take(block: Block, context: WorkerContext, meter: Meter) -> Iterator[Rows]:
    """Yield the rows of a block, where they lie."""
    with meter.timing("read"):
        batches = context.take(block.ref)
    _check_whole(block, batches)
    meter.take_in(block.rejects)
    for batch, spans in zip(batches, unpacked(block.spans), strict=True):
        meter.read_block(block, batch.num_rows)
        yield unfolded(Rows(batch, spans))


def _check_whole(block: Block, batches: list[pa.RecordBatch]) -> None:
    """Compare the rows of a block with those that its maker put into it."""
    rows = sum(batch.num_rows for batch in batches)
    if rows != block.rows:
        raise LedgerMismatch(mismatch(f"a block of {block.rows:,} rows came to the next stage with {rows:,}"))


def _rows_of(
    taken: deque[tuple[Block | Tail, list[pa.RecordBatch]]], skip: int, rows: int | None, meter: Meter
) -> Iterator[Rows]:
    """Yield the rows of blocks, without the first ``skip`` and no more than ``rows``.

    What failed on the way to a block is told by whoever takes its first rows.
    """
    left = sys.maxsize if rows is None else rows
    while taken:
        item, batches = taken.popleft()
        if not skip:
            meter.take_in(item.rejects)
        if isinstance(item, Tail):
            continue
        for batch, spans in zip(batches, unpacked(item.spans), strict=True):
            passed = min(skip, batch.num_rows)
            part = Rows(batch, spans).cut(passed, min(batch.num_rows, passed + left))
            skip -= passed
            left -= len(part)
            meter.read_block(item, len(part))
            if len(part):
                yield unfolded(part)


@dataclass(frozen=True, slots=True)
class BlockSize:
    """How big blocks are: about 8 MiB, and of a multiple of ``unit`` rows, if that is not 0.

    With ``rows``, they have no more than that, if a multiple of ``unit`` is less. Where a single unit is bigger than
    64 MiB, who reads the blocks puts it together.
    """

    unit: int = 0
    rows: int = 0

    def of(self, rows: Rows) -> int:
        """Return how many rows like these make a block."""
        most = _most(rows)
        if self.unit * max(rows.batch.nbytes / len(rows), 1) > UNIT_BYTES:
            return most
        return max((min(most, self.rows) if self.rows else most) // self.unit, 1) * self.unit


def _most(rows: Rows) -> int:
    """Return how many rows like these make about 8 MiB."""
    return max(1, int(BLOCK_BYTES // max(rows.batch.nbytes / len(rows), 1)))


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
            size = part.batch.nbytes
            if parts and (held + size > BLOCK_BYTES or parts[0].batch.schema != part.batch.schema):
                yield _joined(parts)
                parts, held = [], 0
            parts.append(part)
            held += size
        del whole
    if parts:
        yield _joined(parts)


def _joined(parts: list[Rows]) -> list[Rows]:
    size = sum(part.batch.nbytes for part in parts)
    if len(parts) == 1 or size / len(parts) >= SMALL:
        return parts
    rows = join(parts)
    return [Rows(rows.batch, merged(rows.spans))]


def _cut(rows: Rows) -> Iterator[Rows]:
    if not len(rows):
        return
    size = _most(rows)
    for at in range(0, len(rows), size):
        yield rows.cut(at, min(at + size, len(rows)))
