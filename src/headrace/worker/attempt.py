"""One try at a task: a chain of generators from its input through the steps to a part, a reader, or blocks."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.core import failpoints, failures
from headrace.core.arrow.batch import fits, owned, schema_bytes, schema_from, to_ipc
from headrace.core.arrow.objects import bytes_of, object_indices
from headrace.core.arrow.output_schema import as_files_hold, conform, conform_to_read, fill, is_complete
from headrace.core.arrow.widening import with_columns
from headrace.core.engine_ports import WorkerContext
from headrace.core.events import RowsBegun, RowsRead
from headrace.core.messages import LeaveRest, RestLeft
from headrace.core.metric_states import MOST_BYTES, stored
from headrace.core.target_ports import JoinedWriter
from headrace.core.work import (
    AttemptLost,
    BlockMade,
    Deferred,
    Done,
    Failed,
    Outcome,
    OutputBlocks,
    Proposal,
    Split,
    Task,
)
from headrace.errors import NodeLost
from headrace.plan.physical import Program
from headrace.plan.steps.base import goes_through
from headrace.worker.blocks import (
    BLOCK_BYTES,
    ArrivingBlocks,
    BlockSize,
    InputLost,
    StageInput,
    packed_for,
    prefetched,
    reads_of_splits,
    rows_of_task,
    shared_blocks,
    splits_of,
)
from headrace.worker.copying import CannotCopy, CopiedColumns, GroupCopier, read_for_copying
from headrace.worker.early_end import EarlyEnd, PlaceLost, Speed
from headrace.worker.messages import preview
from headrace.worker.meter import Meter, MetricsCounter
from headrace.worker.reading import InputCheck, Read, count_read, read_split
from headrace.worker.rows import PlacesInPart, Rows, UndeliveredRows, delivered_after
from headrace.worker.staged_output import StagedOutput
from headrace.worker.steps.base import StepChain

if TYPE_CHECKING:
    from headrace.core.uploader import Uploader

UNDECIDED_BYTES = 64 << 20
REPORT_SECONDS = 0.25

AttemptGenerator = Generator[Outcome, "bytes | None", None]


class Attempt:
    """One attempt at one task: a shard, or a part of one where its rows go to the next stage."""

    def __init__(
        self,
        program: Program,
        chain: StepChain,
        context: WorkerContext,
        task: Task,
        where: Callable[[Rows], str],
        inputs: queue.SimpleQueue[StageInput] | None,
        speed: Speed,
        clock: Callable[[], float],
        uploader: Uploader | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``stopping`` says whether the attempt is to end early, as soon as it can."""
        self._where = where
        self._arriving = ArrivingBlocks(inputs, context, task) if inputs is not None else None
        self._program = program
        self._speed = speed
        self._clock = clock
        self._uploader = uploader
        self._stopping = stopping
        self._chain = chain
        self._context = context
        self._task = task
        self._makes_blocks = program.kind == "make"
        self._dataset = program.dataset_of(splits_of(task))
        functions = [step for step in program.steps if step.functions() and goes_through(step, self._dataset)]
        self._last_function = functions[-1].label() if functions else "The source"
        self._schema = schema_from(task.schema) if task.schema is not None else None
        self._copies = bool(program.carried) and not task.decodes
        self._inputs = InputCheck(program.source)
        self._meter = Meter(len(program.steps), travels=self._makes_blocks)
        self._meter.report_progress = self._report_begun if self._makes_blocks else self._report_progress
        self._meter.report_to(self._context, task.poison_rows, task.shard.index)
        self._early_end = EarlyEnd(
            task.shard,
            program.steps,
            self._meter,
            every=task.every if program.kind == "write" else 0.0,
            shared=task.shared and program.kind == "write",
            unit=program.parted,
            speed=self._speed,
            ready=lambda: self._schema is not None,
            stopping=self._stopping,
            clock=self._clock,
        )
        self._copied: CopiedColumns | None = None
        self._seen_schema: pa.Schema | None = None
        self._output = StagedOutput(program, task, self._meter)
        self._written = 0
        self._places = PlacesInPart(task.shard.splits)
        self._counting = MetricsCounter(program.metrics, self._where, show_data=program.policy.show_data)
        self._states: tuple[bytes, ...] = ()
        self._delivered = task.after
        self._last_report = self._clock()
        self._batches_cut = 0

    def run(self) -> AttemptGenerator:
        """Process the task from its input to its output; yields messages for the driver."""
        failpoints.hit("attempt.started")
        if self._copies and not self._makes_blocks:
            self._copied = CopiedColumns.chosen(self._program, self._task.shard.splits, self._schema)
        rows = self._chain.run(
            self._read(), self._meter, self._task.budgets, self._task.ceilings, self._dataset
        )
        yield from self._make_blocks(rows) if self._makes_blocks else self._finish_rows(rows)

    def _make_blocks(self, rows: Iterator[Rows]) -> Iterator[Outcome]:
        """Give the rows to the next stage, one block at a time."""
        shard, attempt, meter = self._task.shard.index, self._task.attempt, self._meter
        size = BlockSize(self._program.unit, self._program.block_rows)
        for block in shared_blocks(rows, size, self._context, meter, self._inputs.check):
            self._report_begun(meter.source_rows)
            yield BlockMade(shard, attempt, block, meter.ledger())
        self._inputs.check()
        self._report_begun(meter.source_rows)
        yield Done(shard, attempt, (), meter.ledger(), meter.timings(), rejects=meter.take_rejects())

    def _finish_rows(self, rows: Iterator[Rows]) -> AttemptGenerator:
        """Write the rows of a shard, count them, or give them to a reader."""
        parts = self._parts(rows)
        first_rows: list[Rows] = []
        if self._schema is None and self._program.kind != "count":
            first_rows = yield from self._settle_schema(parts)
            if self._schema is None and first_rows:
                return  # deferred
        rows = self._counted(chain(first_rows, parts))
        if self._program.kind == "count":
            for _ in rows:
                pass
        elif self._copied is not None:
            self._copy(self._copied, rows)
        elif self._program.kind == "write":
            self._write(rows)
        else:
            yield from self._give_blocks(rows)
        self._output.end(self._inputs, self._places)
        self._states = self._counting.states()
        self._inputs.check()
        if self._early_end.rest is not None:
            failpoints.hit("attempt.parted")
        yield self._done()

    # ------------------------------------------------------------ what becomes of the rows

    def _counted(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Count rows, also in the metrics; pass on those that a reader does not have yet."""
        after = self._task.after
        undelivered = UndeliveredRows(self._task.shard, after) if after is not None else None
        for part in rows:
            self._places.note(self._meter.rejects, part)
            self._written += len(part)
            if self._program.metrics:
                with self._meter.timing("metrics"):
                    self._counting.update(part)
            if undelivered is not None:
                part = undelivered.cut(part)
            if len(part):
                yield part

    def _fitting(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Cut what is too big for the settled types, such as more than 2 GiB of ``binary``."""
        for part in rows:
            assert self._schema is not None
            if len(part) < 2 or fits(part.batch, self._schema):
                yield part
            else:
                yield from self._fitting(iter(part.halves()))

    def _write(self, rows: Iterator[Rows]) -> None:
        for part in self._fitting(rows):
            assert self._schema is not None
            batch = self._conform(part, self._schema)
            # Copied: a column that waits to be encoded would keep its whole block in memory.
            self._output.write(owned(batch) if self._arriving is not None else batch, self._schema)

    def _copy(self, copied: CopiedColumns, rows: Iterator[Rows]) -> None:
        """Write rows of which some columns are copied."""
        copier: GroupCopier | None = None
        for part in self._fitting(rows):
            assert self._schema is not None
            copier = copier or copied.copier(self._schema, self._conform, self._joined_writer)
            made = copied.made(part)
            batch = self._conform(made, copied.schema) if len(copied.schema) else made.batch
            batch = owned(batch) if self._arriving is not None else batch
            with self._meter.timing("write"):
                copier.write(made.with_batch(batch))
        if copier is not None:
            with self._meter.timing("write"):
                copier.close()

    def _joined_writer(self) -> JoinedWriter:
        assert self._copied is not None and self._schema is not None
        return self._output.joined(self._schema, self._copied.names, self._copied.old_times)

    def _give_blocks(self, rows: Iterator[Rows]) -> Iterator[OutputBlocks]:
        """Yield blocks of 8 MiB, each of rows of one schema, for a reader."""
        block: list[pa.RecordBatch] = []
        size = 0
        for part in rows:
            assert self._schema is not None
            batch = self._conform(part, self._schema)
            if block and not block[0].schema.equals(batch.schema):
                yield self._blocks(block)
                block, size = [], 0
            block.append(batch)
            if self._program.kind == "blocks":
                self._delivered = delivered_after(part, self._task.shard, self._delivered)
            size += bytes_of(batch)
            if size >= BLOCK_BYTES:
                yield self._blocks(block)
                block, size = [], 0
        if block:
            yield self._blocks(block)

    def _conform(self, part: Rows, schema: pa.Schema) -> pa.RecordBatch:
        if self._program.kind != "write":
            return conform_to_read(part.batch, schema)
        show = self._program.policy.show_data
        where = partial(self._describe_row, part)  # may be slow: called only if a value does not fit
        batch = as_files_hold(part.batch, self._last_function, where)
        if len(self._program.reads) > 1:  # rows of each dataset have columns of their own
            batch = with_columns(batch, schema)
        return conform(batch, schema, self._last_function, writes=True, where=where, show_data=show)

    def _describe_row(self, part: Rows, at: int) -> str:
        """Describe a row for a message: where it stands, and its values if they may be shown."""
        row = part.cut(at, at + 1)
        values = preview(row.batch) if self._program.policy.show_data else ""
        return f"{self._where(row)}{f': {values}' if values else ''}"

    def _parts(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Yield batches that have rows; remember the schema even if none has."""
        for part in rows:
            failpoints.hit("attempt.batch")
            self._report_progress()
            self._seen_schema = self._seen_schema or self._typed(part.batch.schema)
            if len(part):
                yield part

    def _settle_schema(self, parts: Iterator[Rows]) -> Generator[Outcome, bytes | None, list[Rows]]:
        """Propose the schema of the first rows, and return these rows; or defer the attempt.

        While a column has only nulls, more rows are read before the proposal.
        """
        first_rows: list[Rows] = []
        proposal = pa.schema([])
        size = 0
        complete = False
        for part in parts:
            if self._program.kind == "write":
                where = partial(self._describe_row, part)
                part = part.with_batch(as_files_hold(part.batch, self._last_function, where))
            schema = self._typed(part.batch.schema)
            proposal = fill(proposal, schema) if first_rows else schema
            first_rows.append(part)
            size += bytes_of(part.batch)
            complete = is_complete(proposal)
            if complete or size > UNDECIDED_BYTES:
                break
        if not first_rows:
            return []
        schema = schema_bytes(proposal.remove_metadata())
        if self._task.asks_schema or (not complete and not self._limit_reached()):
            yield Deferred(self._task.shard.index, self._task.attempt, schema)
            return first_rows
        answer = yield Proposal(self._task.shard.index, self._task.attempt, schema, last=not complete)
        assert answer is not None
        self._schema = schema_from(answer)
        return first_rows

    def _typed(self, schema: pa.Schema) -> pa.Schema:
        return self._copied.typed(schema) if self._copied is not None else schema

    def _limit_reached(self) -> bool:
        """Say whether a ``limit`` is reached, so that no further rows will come."""
        passed = [
            count.given
            for count, step in zip(self._meter.steps, self._program.steps, strict=True)
            if step.row_limit is not None
        ]
        return any(given >= budget for given, budget in zip(passed, self._task.budgets, strict=True))

    def _read(self) -> Iterator[Rows]:
        if self._arriving is not None:
            parts = (Read(rows) for rows in self._arriving.rows(self._meter, self._early_end))
            return (read.rows for read in self._early_end.pass_reads(parts, of_blocks=True))
        if self._task.blocks:
            return rows_of_task(self._task, self._context, self._meter)
        reads = reads_of_splits(self._task, self._early_end.splits(), self._read_split)
        reads = self._early_end.pass_reads(prefetched(reads) if self._program.overlapped else reads)
        rows = count_read(reads, self._meter)
        return self._growing_batches(rows) if self._program.kind == "look" else rows

    def _read_split(self, split: Split) -> Iterator[Read]:
        self._inputs.begin(split)
        skip = self._task.poison_rows.skip
        if self._copied is not None:
            return self._copied.read(split, self._meter, skip)
        read = read_for_copying if self._copies and self._makes_blocks else read_split
        return read(self._program, split, self._meter, skip)

    def _growing_batches(self, parts: Iterator[Rows]) -> Iterator[Rows]:
        """Cut batches for a preview: as many rows as are asked for, then twice as many, and so on."""
        for part in parts:
            at = 0
            while at < len(part):
                size = max(self._task.budgets[-1], 1) << min(self._batches_cut, 16)
                self._batches_cut += 1
                yield part.cut(at, min(at + size, len(part)))
                at += size

    def _report_progress(self) -> None:
        now = self._clock()
        if now - self._last_report >= REPORT_SECONDS:
            self._last_report = now
            self._context.notify(
                RowsRead(
                    self._context.worker,
                    self._task.shard.index,
                    self._meter.done_rows,
                    self._meter.faults(words=self._program.policy.show_data),
                    self._early_end.shard_rows,
                    self._meter.done_size,
                    round(self._meter.seconds["wait"], 3),
                )
            )

    def _report_begun(self, rows: int | None = None) -> None:
        """Say how many rows went through a stage before the last; at once if so many ``rows`` are in blocks."""
        now, meter, context = self._clock(), self._meter, self._context
        if rows is None and now - self._last_report < REPORT_SECONDS:
            return
        self._last_report = now
        done = meter.done_rows if rows is None else max(rows, meter.done_rows)
        shard, task = self._task.shard.index, self._task.attempt
        context.notify(RowsBegun(self._program.stage, context.worker, shard, task, done, meter.done_size))

    def _blocks(self, batches: list[pa.RecordBatch]) -> OutputBlocks:
        self._inputs.check()
        sent, objects = packed_for(self._context, batches)
        data = to_ipc(sent[0].schema, sent)
        alive = batches if self._context.here and object_indices(batches[0].schema) else None
        return OutputBlocks(self._task.shard.index, self._task.attempt, data, self._delivered, objects, alive)

    @property
    def must_finish(self) -> bool:
        """True if the attempt has output rows, rejected rows or a big metric state to write."""
        big = bool(self._program.states) and any(len(state) > MOST_BYTES for state in self._states)
        return self._output.is_open or big

    def leave(self, item: LeaveRest) -> list[RestLeft]:
        """Leave parts of the shard to others, if it is worth it; called from another thread, and never waits."""
        rests = self._early_end.leave(item.worth, item.shares)
        return [RestLeft(self._task.shard.index, self._task.attempt, rest) for rest in rests]

    def finish(self, done: Done) -> Outcome:
        """Close and sync the files, or upload them; runs in a thread of its own, after ``run`` has ended."""
        try:
            self._output.finish()
            states = stored(self._states, self._program.states, self._program.durability)
            if self._uploader is not None:
                self._output.upload(self._uploader, states)
        except BaseException as error:
            self.abort()
            return self.failure(error)
        seconds = self._meter.timings()
        return msgspec.structs.replace(done, files=self._output.files, timings=seconds, states=states)

    def failure(self, error: BaseException) -> Outcome:
        """Return the outcome of an attempt that raised this error."""
        shard, attempt = self._task.shard.index, self._task.attempt
        if isinstance(error, (InputLost, NodeLost, PlaceLost)):
            return AttemptLost(shard, attempt, str(error), charged=False)
        if isinstance(error, CannotCopy):
            return AttemptLost(shard, attempt, str(error), charged=False, decodes=True)
        return Failed(shard, attempt, failures.report(self._inputs.reason(error)))

    def _done(self) -> Done:
        ledger = self._meter.ledger(self._written)
        limits = [i for i, step in enumerate(self._program.steps) if step.row_limit is not None]
        return Done(
            self._task.shard.index,
            self._task.attempt,
            self._output.files,
            ledger,
            self._meter.timings(),
            schema_bytes(self._seen_schema) if self._seen_schema is not None and not self._written else None,
            tuple(ledger.steps[i][1] for i in limits),
            self._arriving.taken if self._arriving is not None else 0,
            self._meter.faults(words=self._program.policy.show_data),
            self._states,
            self._early_end.rest,
        )

    def abort(self) -> None:
        """Remove the staged files."""
        self._output.abort()
