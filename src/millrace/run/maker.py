"""A worker of a stage before the last: it makes blocks of pieces, one per call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millrace.core import failpoints
from millrace.core.events import BatchShrunk, CallRetried
from millrace.core.ports import WorkerContext
from millrace.core.work import Block, Broken, Ended, Made, Piece, Progress, Timings
from millrace.plan.physical import Program
from millrace.run import failures
from millrace.run.guard import Meter
from millrace.run.places import packed, unpacked, where
from millrace.run.reading import counted, read_split
from millrace.run.rows import Rows, join, merged
from millrace.run.steps import Chain
from millrace.run.watching import Watch

BLOCK_BYTES = 8 << 20
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
            if failures.is_interrupt(error):
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
        failpoints.hit("piece.started")
        meter = Meter(len(self._program.steps), travels=True)
        meter.shrunk = self._shrunk
        meter.retried = self._retried
        if piece.caution.watched:
            meter.watch = Watch(piece.caution, self._context.worker, piece.shard, self._context.notify)
        if piece.block is not None:
            rows = take(piece.block, self._context, meter)
        else:
            assert piece.split is not None
            rows = counted(read_split(self._program, piece.split, meter, piece.caution.skip), meter)
        for parts in _grouped(self._chain.run(rows, meter, piece.budgets)):
            failpoints.hit("piece.block")
            with meter.timing("write"):
                batches = [part.batch for part in parts]
                ref = self._context.share(batches[0].schema, batches)
            spans = packed([part.spans for part in parts])
            block = Block(ref, sum(map(len, parts)), spans, meter.drained())
            del parts, batches
            yield Made(piece.number, block, meter.ledger())
        yield Ended(piece.number, meter.ledger(), Timings(**meter.seconds), meter.drained())

    def _retried(self, step: str, error: str) -> None:
        self._context.notify(CallRetried(self._context.worker, step, error))

    def _shrunk(self, step: str, before: int, now: int) -> None:
        self._context.notify(BatchShrunk(self._context.worker, step, before, now))

    def _where(self, rows: Rows) -> str:
        return where(self._program.source, rows)


def take(block: Block, context: WorkerContext, meter: Meter) -> Iterator[Rows]:
    """Yield the rows of a block, where they lie."""
    with meter.timing("read"):
        batches = context.take(block.ref)
    meter.take_in(block.rejects)
    meter.read_rows += block.rows
    for batch, spans in zip(batches, unpacked(block.spans), strict=True):
        yield Rows(batch, spans)


def _grouped(rows: Iterator[Rows]) -> Iterator[list[Rows]]:
    """Gather rows to blocks of about 8 MiB, each of one schema; big batches are cut."""
    parts: list[Rows] = []
    held = 0
    for whole in rows:
        for part in _cut(whole):
            size = part.batch.nbytes
            if parts and (held + size > BLOCK_BYTES or parts[0].batch.schema != part.batch.schema):
                yield _joined(parts, held)
                parts, held = [], 0
            parts.append(part)
            held += size
        del whole
    if parts:
        yield _joined(parts, held)


def _joined(parts: list[Rows], size: int) -> list[Rows]:
    if len(parts) == 1 or size / len(parts) >= SMALL:
        return parts
    rows = join(parts)
    return [Rows(rows.batch, merged(rows.spans))]


def _cut(rows: Rows) -> Iterator[Rows]:
    if not len(rows):
        return
    per_row = max(rows.batch.nbytes / len(rows), 1)
    size = max(1, int(BLOCK_BYTES // per_row))
    for at in range(0, len(rows), size):
        yield rows.cut(at, min(at + size, len(rows)))
