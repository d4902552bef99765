"""One worker: it carries out attempts, each a chain of generators from the source to the sink."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain

import msgspec
import pyarrow as pa

from millrace.core import failpoints
from millrace.core.batch import owned, schema_bytes, schema_from, to_ipc
from millrace.core.events import RowsRead
from millrace.core.ports import WorkerContext, Writer
from millrace.core.work import (
    Block,
    Blocks,
    Deferred,
    Done,
    Failed,
    Finishing,
    Lost,
    Outcome,
    Proposal,
    Squeeze,
    StagedFile,
    Tail,
    Task,
    Timings,
    Waiting,
)
from millrace.errors import NodeLost
from millrace.plan.logical import functions_of, step_label
from millrace.plan.physical import Program
from millrace.run import failures
from millrace.run.closing import Closing, Speed
from millrace.run.counting import MOST_BYTES, Counting, kept
from millrace.run.guard import Meter
from millrace.run.handing import Remaining, handed
from millrace.run.lanes import Behind, ahead
from millrace.run.places import where
from millrace.run.preview import preview
from millrace.run.reading import Read, counted, read_split
from millrace.run.rejected import set_aside
from millrace.run.rows import Rows
from millrace.run.schemas import conform, fill, is_complete
from millrace.run.steps import Chain
from millrace.run.unchanged import InputCheck
from millrace.run.watching import report, tell_ready

BLOCK_BYTES = 8 << 20
UNDECIDED_BYTES = 64 << 20
TELL_EVERY = 0.25

Fodder = Block | Tail | str | None
Conversation = Generator[Outcome, "bytes | None", None]


class ShardWorker:
    """Hosted in each worker of a stage's pool; ``attempt`` and ``proceed`` answer with an ``Outcome``."""

    def __init__(
        self, program: Program, context: WorkerContext, clock: Callable[[], float] = time.monotonic
    ) -> None:
        failpoints.activate(program.faults)
        self._program = program
        self._context = context
        self._chain = Chain(
            program.steps,
            self._where,
            eager=program.kind == "look",
            unread=program.unread,
            preparing=context.preparing,
            loaded=partial(tell_ready, context),
            policy=program.policy,
        )
        self._open: dict[int, tuple[_Attempt, Conversation]] = {}
        self._finisher = ThreadPoolExecutor(1, "millrace-finish")
        self._troughs: dict[tuple[int, int], queue.SimpleQueue[Fodder]] = {}
        self._over: deque[tuple[int, int]] = deque(
            maxlen=64
        )  # attempts to which something may still be on its way
        self._feeding = threading.Lock()
        functions = [step for step in program.steps if functions_of(step)]
        self._made_by = step_label(functions[-1]) if functions else "The source"
        self._clock = clock
        self._speed = Speed()

    def feed(self, shard: int, attempt: int, fodder: Fodder | Squeeze) -> None:
        """Take the next block of an attempt; None after the last, words if it cannot go on.

        Called from another thread than the rest, maybe before the attempt is begun.
        """
        if isinstance(fodder, Squeeze):
            self._chain.squeeze()
            return
        with self._feeding:
            trough = None if (shard, attempt) in self._over else self._trough(shard, attempt)
        if trough is not None:
            trough.put(fodder)
        else:
            self._let_go(fodder)

    def _let_go(self, fodder: Fodder) -> None:
        """Take a block that nobody needs any more, and drop it."""
        if isinstance(fodder, Block):
            with contextlib.suppress(NodeLost):
                self._context.take(fodder.ref)

    def _trough(self, shard: int, attempt: int) -> queue.SimpleQueue[Fodder]:
        return self._troughs.setdefault((shard, attempt), queue.SimpleQueue())

    def _clear(self, shard: int, attempt: int) -> None:
        """An attempt is over: let go of what it was fed and did not take."""
        with self._feeding:
            self._over.append((shard, attempt))
            trough = self._troughs.pop((shard, attempt), None)
        while trough is not None and not trough.empty():
            self._let_go(trough.get())
        self._context.tidy()

    def attempt(self, task: Task) -> Outcome | Future[Outcome]:
        """Begin an attempt; it ends in ``Done``, ``Deferred`` or ``Failed``, or waits for ``proceed``."""
        trough = None
        if self._program.fed:
            with self._feeding:
                trough = self._trough(task.shard.index, task.attempt)
        attempt = _Attempt(
            self._program,
            self._chain,
            self._context,
            task,
            self._made_by,
            self._where,
            trough,
            self._speed,
            self._clock,
        )
        self._open[task.shard.index] = attempt, _talk(attempt)
        return self._listen(task.shard.index, None)

    def proceed(self, shard: int, schema: bytes | None) -> Outcome | Future[Outcome]:
        """Let a waiting attempt go on with the schema that was settled meanwhile."""
        return self._listen(shard, schema)

    def close(self) -> None:
        """Let go of files; attempts under way are dropped."""
        for _, talk in self._open.values():
            talk.close()
        self._finisher.shutdown()
        self._chain.close()
        self._program.source.close()

    def _listen(self, shard: int, answer: bytes | None) -> Outcome | Future[Outcome]:
        attempt, talk = self._open[shard]
        try:
            outcome = talk.send(answer)
        except BaseException as error:
            if failures.is_interrupt(error):
                del self._open[shard]
                raise
            outcome = attempt.failed(error)
        if isinstance(outcome, (Proposal, Blocks)):
            return outcome
        del self._open[shard]
        next(talk, None)  # to its end; closing it would be giving it up
        if self._program.fed:
            self._clear(shard, outcome.attempt)
        if isinstance(outcome, Done) and attempt.has_files:
            self._context.notify(Finishing(outcome.shard, outcome.attempt))
            # Encoding behind and the disk may take their time: the next shard begins meanwhile.
            return self._finisher.submit(attempt.finished, outcome)
        return outcome

    def _where(self, rows: Rows) -> str:
        return where(self._program.source, rows)


def _talk(attempt: _Attempt) -> Conversation:
    """Carry an attempt out; if it does not come to its end, nothing of it stays staged."""
    try:
        yield from attempt.run()
    except BaseException:
        attempt.abort()
        raise


class _CutOff(Exception):
    """What an attempt was fed in part is lost."""


class _Attempt:
    """One attempt at one shard."""

    def __init__(
        self,
        program: Program,
        chain: Chain,
        context: WorkerContext,
        task: Task,
        made_by: str,
        where: Callable[[Rows], str],
        trough: queue.SimpleQueue[Fodder] | None,
        speed: Speed,
        clock: Callable[[], float],
    ) -> None:
        self._where = where
        self._trough = trough
        self._program = program
        self._chain = chain
        self._context = context
        self._task = task
        self._made_by = made_by
        self._inputs = InputCheck(program.source)
        self._meter = Meter(len(program.steps))
        self._meter.tell = self._tell
        report(self._meter, context, task.caution, task.shard.index)
        self._schema = schema_from(task.schema) if task.schema is not None else None
        self._closing = Closing(
            task.shard,
            program.steps,
            self._meter,
            every=task.every if program.kind == "write" else 0.0,
            unit=program.parted,
            speed=speed,
            ready=lambda: self._schema is not None,
            clock=clock,
        )
        self._seen: pa.Schema | None = None
        self._writer: Writer | None = None
        self._aside: Writer | None = None  # of rows that failed
        self._files: tuple[StagedFile, ...] = ()
        self._written = 0
        self._counting = Counting(program.metrics, where, show_data=program.policy.show_data)
        self._states: tuple[bytes, ...] = ()
        self._until = task.after
        self._taken = 0  # blocks of the stage before
        self._used_all = False
        self._told = time.monotonic()
        self._looks = 0

    def run(self) -> Conversation:
        """Carry the shard from the source to the sink; yields what the driver has to know."""
        failpoints.hit("attempt.started")
        parts = self._parts(
            self._chain.run(self._read(), self._meter, self._task.budgets, self._task.ceilings)
        )
        held: list[Rows] = []
        if self._schema is None and self._program.kind != "count":
            held = yield from self._ask(parts)
            if self._schema is None and held:
                return  # deferred
        block: list[pa.RecordBatch] = []
        size = 0
        reads = self._program.kind == "blocks"
        missing = Remaining(self._task.shard, self._task.after) if self._task.after is not None else None
        for part in chain(held, parts):
            self._written += len(part)
            if self._program.metrics:
                with self._meter.timing("steps"):
                    self._counting.update(part)
            if self._program.kind == "count":
                continue
            if missing is not None:
                part = missing.of(part)
                if not len(part):
                    continue
            assert self._schema is not None
            batch = self._conform(part)
            if self._program.kind == "write":
                # A column that waits to be encoded would keep the whole block in use that it lies in.
                self._write(owned(batch) if self._trough is not None else batch)
                continue
            block.append(batch)
            if reads:
                self._until = handed(part, self._task.shard, self._until)
            size += batch.nbytes
            if size >= BLOCK_BYTES:
                yield self._blocks(block)
                block, size = [], 0
        if block:
            yield self._blocks(block)
        if self._writer is not None and not self._program.lanes:
            self._end_part()
        if self._meter.rejects and self._program.sink is not None:
            with self._meter.timing("write"):
                for split in {reject.split for reject in self._meter.rejects}:
                    self._inputs.begin(split)  # they are read again
                self._aside = set_aside(self._program, self._task, self._meter.rejects)
        self._states = self._counting.states()
        self._inputs.check()
        if self._closing.rest is not None:
            failpoints.hit("attempt.parted")
        yield self._done()

    def _conform(self, part: Rows) -> pa.RecordBatch:
        assert self._schema is not None
        writes, show = self._program.kind == "write", self._program.policy.show_data
        where = partial(self._at, part)  # which may be slow: only asked if it does not fit
        return conform(part.batch, self._schema, self._made_by, writes=writes, where=where, show_data=show)

    def _at(self, part: Rows, at: int) -> str:
        """Say which row of the output this is, and what it holds, if that may be shown."""
        row = part.cut(at, at + 1)
        values = preview(row.batch) if self._program.policy.show_data else ""
        return f"{self._where(row)}{f': {values}' if values else ''}"

    def _parts(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Yield the output that has rows; remember its schema even if none has."""
        for part in rows:
            failpoints.hit("attempt.batch")
            self._tell()
            self._seen = self._seen or part.batch.schema
            if len(part):
                yield part

    def _ask(self, parts: Iterator[Rows]) -> Generator[Outcome, bytes | None, list[Rows]]:
        """Have the output schema settled by the first rows, and return them; or defer the attempt.

        A column of nothing but nulls so far is waited for, as long as more rows may come.
        """
        held: list[Rows] = []
        proposal = pa.schema([])
        size = 0
        complete = False
        for part in parts:
            proposal = fill(proposal, part.batch.schema) if held else part.batch.schema
            held.append(part)
            size += part.batch.nbytes
            complete = is_complete(proposal)
            if complete or size > UNDECIDED_BYTES:
                break
        if not held:
            return []
        schema = schema_bytes(proposal.remove_metadata())
        if not complete and not self._used_up():
            yield Deferred(self._task.shard.index, self._task.attempt, schema)
            return held
        answer = yield Proposal(self._task.shard.index, self._task.attempt, schema, last=not complete)
        assert answer is not None
        self._schema = schema_from(answer)
        return held

    def _used_up(self) -> bool:
        """Say whether a ``limit`` has let pass all that it may: no further rows will come."""
        passed = [
            given
            for (_, given, *_), step in zip(self._meter.steps, self._program.steps, strict=True)
            if step.verb == "limit"
        ]
        return any(given >= budget for given, budget in zip(passed, self._task.budgets, strict=True))

    def _read(self) -> Iterator[Rows]:
        if self._trough is not None:
            return self._closing.rows(self._fed(self._trough))
        reads = self._splits()
        reads = self._closing.reads(ahead(reads) if self._program.lanes else reads)
        rows = counted(reads, self._meter)
        return self._growing(rows) if self._program.kind == "look" else rows

    def _splits(self) -> Iterator[Read]:
        for split in self._task.shard.splits:
            self._inputs.begin(split)
            yield from read_split(self._program, split, self._meter, self._task.caution.skip)

    def _fed(self, trough: queue.SimpleQueue[Fodder]) -> Iterator[Rows]:
        """Yield the rows of the blocks that the stage before gives, in order, as they come."""
        from millrace.run.maker import take

        while True:
            with self._meter.timing("wait"):
                fodder = self._next_fed(trough)
            if fodder is None:
                self._used_all = True
                return
            if isinstance(fodder, str):
                raise _CutOff(fodder)
            self._taken += 1
            if fodder.rejects:
                self._closing.inexact()
            if isinstance(fodder, Tail):
                self._meter.take_in(fodder.rejects)
                continue
            yield from take(fodder, self._context, self._meter)

    def _next_fed(self, trough: queue.SimpleQueue[Fodder]) -> Fodder:
        self._context.tidy()
        try:
            return trough.get_nowait()
        except queue.Empty:
            self._context.notify(Waiting(self._task.shard.index, self._task.attempt, self._taken))
        while True:
            try:
                return trough.get(timeout=TELL_EVERY)
            except queue.Empty:
                self._context.tidy()  # somebody else here may have let go of a block

    def _growing(self, parts: Iterator[Rows]) -> Iterator[Rows]:
        """For a look at some rows: hand out as many as are asked for, then twice as many, and so on."""
        for part in parts:
            at = 0
            while at < len(part):
                size = max(self._task.budgets[-1], 1) << min(self._looks, 16)
                self._looks += 1
                yield part.cut(at, min(at + size, len(part)))
                at += size

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_EVERY:
            self._told = now
            self._context.notify(
                RowsRead(
                    self._context.worker,
                    self._task.shard.index,
                    self._meter.done_rows,
                    self._meter.faults(words=self._program.policy.show_data),
                )
            )

    def _write(self, batch: pa.RecordBatch) -> None:
        with self._meter.timing("write"):
            if self._writer is None:
                assert self._program.sink is not None and self._schema is not None
                if self._task.attempt == 0 and self._task.schema is None:
                    self._program.sink.check_schema(self._schema)  # the attempts that may settle it
                writer = self._program.sink.open(self._task, self._schema)
                self._writer = Behind(writer) if self._program.lanes else writer
            self._writer.write(batch)

    def _blocks(self, batches: list[pa.RecordBatch]) -> Blocks:
        self._inputs.check()
        data = to_ipc(batches[0].schema, batches)
        return Blocks(self._task.shard.index, self._task.attempt, data, self._until)

    @property
    def has_files(self) -> bool:
        """True if the attempt wrote rows, be it that they are set aside; or has the state of a metric to write."""
        big = bool(self._program.states) and any(len(state) > MOST_BYTES for state in self._states)
        return self._writer is not None or self._aside is not None or big

    def _end_part(self) -> None:
        """Encode what is left; with lanes this runs in the finishing thread, else in the worker's own."""
        assert self._writer is not None
        with self._meter.timing("write"):
            self._files = self._writer.close()

    def finished(self, done: Done) -> Outcome:
        """End the part and make it last; runs in a thread of its own, after ``run`` has ended."""
        try:
            if self._writer is not None:
                if self._program.lanes:
                    self._end_part()
                self._writer.sync()
            if self._aside is not None:
                self._files += self._aside.close()
                self._aside.sync()
            states = kept(self._states, self._program.states, self._program.durability)
        except BaseException as error:
            self.abort()
            return self.failed(error)
        seconds = Timings(**self._meter.seconds)
        return msgspec.structs.replace(done, files=self._files, timings=seconds, states=states)

    def failed(self, error: BaseException) -> Outcome:
        """Say what went wrong."""
        shard, attempt = self._task.shard.index, self._task.attempt
        if isinstance(error, (_CutOff, NodeLost)):
            return Lost(shard, attempt, str(error), blame=False)
        return Failed(shard, attempt, failures.report(self._inputs.reason(error)))

    def _done(self) -> Done:
        ledger = self._meter.ledger(self._written)
        limits = [i for i, step in enumerate(self._program.steps) if step.verb == "limit"]
        return Done(
            self._task.shard.index,
            self._task.attempt,
            self._files,
            ledger,
            Timings(**self._meter.seconds),
            schema_bytes(self._seen) if self._seen is not None and not self._written else None,
            tuple(ledger.steps[i][1] for i in limits),
            None if self._used_all else self._taken,
            self._meter.faults(words=self._program.policy.show_data),
            self._states,
            self._closing.rest,
        )

    def abort(self) -> None:
        """Drop what was staged."""
        for writer in (self._writer, self._aside):
            if writer is not None:
                writer.abort()
        self._writer = self._aside = None
