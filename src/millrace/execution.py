"""Carrying a plan out: composes engine, source, sink, scheduler and committer. Verbs call these functions."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.core import failpoints
from millrace.core.events import Batches, Ceiling, RunFinished, RunStarted, ShardCommitted, StageUse
from millrace.core.ports import PoolSpec
from millrace.engines import machine, memory
from millrace.engines.inline import InlineEngine
from millrace.engines.local import LocalEngine
from millrace.errors import StepError, TooManyErrors
from millrace.options import RunOptions
from millrace.plan import compile as compiler
from millrace.plan import cuts as cutting
from millrace.plan.logical import Plan
from millrace.plan.physical import Policy, Program, Stage
from millrace.plan.stages import stages_of
from millrace.result import Result
from millrace.version import __version__
from millrace.watchers import Watchers

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.core.work import CommitRecord, Shard
    from millrace.plan.cuts import Cuts
    from millrace.run.relief import Relief
    from millrace.run.resume import Job
    from millrace.run.runner import Runner, Tally
    from millrace.run.scheduler import Scheduler
    from millrace.run.supply import Supply
    from millrace.run.suspicion import Suspicion

BLOCKS_SHARE = 4  # of the memory limit, for blocks between stages: one part in so many

# The modules of `run` and the sources import pyarrow. They are imported inside the functions below, after the
# first workers have been started, so that driver and workers do their slow imports at the same time.


@dataclass(slots=True)
class _Workplace:
    """An engine that may have begun to start workers before anybody knows what they will do."""

    engine: LocalEngine | InlineEngine
    stages: tuple[Stage, ...]
    cpus: int
    limit: int
    plan: Plan
    options: RunOptions
    _cuts: Cuts | None = None

    @classmethod
    def open(cls, plan: Plan, options: RunOptions) -> _Workplace:
        capacity = machine.capacity()
        stages = _stages(plan, options)
        limit = options.memory_limit or capacity.memory
        if options.engine == "inline":
            return cls(InlineEngine(), stages, capacity.cpus, limit, plan, options)
        # One core is left for the driver, which imports and plans meanwhile; the other workers start after that.
        warm = min(stages[0].workers, max(1, capacity.cpus - 1))
        engine = LocalEngine(warm, stages[0].threads, devices=machine.devices(), budget=limit // BLOCKS_SHARE)
        return cls(engine, stages, capacity.cpus, limit, plan, options)

    @property
    def budget(self) -> int:
        """Bytes for blocks in flight."""
        return self.limit // BLOCKS_SHARE

    @property
    def cuts(self) -> Cuts:
        """How the work is cut; may look at the input, so not before workers have been started."""
        if self._cuts is None:
            self._cuts = cutting.cuts_of(self.stages, self.plan.source, self.options.shard_rows)
        return self._cuts

    def relief(self, shards: Sequence[Shard]) -> Relief:
        """Return what keeps the run within its memory; an earlier driver may have divided shards."""
        from millrace.run.pressure import Pressure
        from millrace.run.relief import Relief

        return Relief(
            Pressure(self.limit, tight=any(shard.name for shard in shards)), partial(memory.own, os.getpid())
        )

    @property
    def workers(self) -> int:
        """How many workers there are at most, of all stages."""
        return sum(stage.workers for stage in self.stages)

    def programs(self, plan: Plan, kind: str, options: RunOptions, shards: Sequence[Shard]) -> list[Program]:
        """Return what the workers of each stage run, for the shards that are to be done."""
        *earlier, last = cutting.fitted(self.stages, self.cuts, shards)
        last = replace(last, lanes=last.lanes or sum(s.workers for s in earlier) + last.workers < self.cpus)
        self.stages = (*earlier, last)
        schema = plan.source.schema()
        columns = compiler.columns_to_read(plan.steps, schema)
        unread = iter(
            compiler.unread_at([step for stage in self.stages for step in stage.steps], schema, columns)
        )
        lanes = last.lanes and isinstance(self.engine, LocalEngine)
        return [
            Program(
                plan.source,
                stage.steps,
                columns,
                tuple(itertools.islice(unread, len(stage.steps))),
                plan.sink if stage is last else None,
                kind if stage is last else "make",
                lanes and stage is last,
                options.durability,
                failpoints.active(),
                i > 0,
                _policy(options),
                0 if stage is last else self.cuts.units[i + 1],
                0 if i + 2 >= len(self.stages) else cutting.rows_for_all(shards, self.stages[i + 1].workers),
            )
            for i, stage in enumerate(self.stages)
        ]

    def supply(self, options: RunOptions) -> Supply | None:
        """Return what decides for the stages before the last, if there are any."""
        from millrace.engines.slots import spare_of
        from millrace.run.supply import Supply

        *earlier, _ = self.stages
        if not earlier:
            return None
        steps = [len(stage.steps) for stage in earlier]
        limits = [[i for i, step in enumerate(stage.steps) if step.verb == "limit"] for stage in earlier]
        return Supply(
            steps,
            limits,
            budget=self.budget - spare_of(self.budget),
            max_attempts=options.max_attempts,
            origins=[origin for stage in self.stages for origin in stage.origins],
            units=self.cuts.units[:-1],
            pieces=self.cuts.pieces,
        )

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """How few and how many workers each stage may have."""
        return [(stage.least, stage.workers) for stage in self.stages]

    def uses(self, supply: Supply | None, seconds: float) -> tuple[StageUse, ...]:
        """Return how busy the workers of each stage were, if there are several."""
        from millrace.plan.logical import step_label

        if supply is None:
            return ()
        return tuple(
            StageUse(
                " → ".join(map(step_label, stage.steps)) or "read",
                stage.workers,
                min(1.0, busy / max(seconds * stage.workers, 1e-9)),
            )
            for stage, busy in zip(self.stages, supply.busy, strict=True)
        )

    def ahead(self, shards: Sequence[Shard]) -> int:
        """Return how many attempts each worker of the last stage has before it, so that those before are busy."""
        *earlier, last = self.stages
        if not earlier or not shards:
            return 2
        pieces = sum(len(self.cuts.pieces(shard)) for shard in shards) / len(shards)
        wanted = 2 * max(stage.workers for stage in earlier) / (pieces * last.workers)
        return min(64, max(2, 1 + math.ceil(wanted)))

    def drive(
        self, runner: Runner, programs: Sequence[Program], options: RunOptions
    ) -> Iterator[pa.RecordBatch]:
        """Start the pools, drive the plan to its end, end the pools; at once if something goes wrong."""
        from millrace.plan.pickling import explained
        from millrace.run.maker import Maker
        from millrace.run.worker import ShardWorker

        pools: list[Any] = []
        held = any(stage.num_gpus for stage in self.stages)
        for i, (stage, program) in enumerate(zip(self.stages, programs, strict=True)):
            kind = ShardWorker if i + 1 == len(programs) else Maker
            spec = PoolSpec(
                f"stage {i + 1}",
                partial(kind, program),
                stage.least,
                stage.threads,
                stage.num_gpus if held else None,
                stage.memory,
                options.stall_timeout,
                stage.workers,
            )
            with explained(program.steps):
                pools.append(self.engine.start(spec, runner.notify))
        yield from runner.stream(pools[-1], pools[:-1], self.engine.drop, self.engine.keep)
        self.engine.close()

    def close(self) -> None:
        """End what is still there."""
        self.engine.close(kill=True)


def _policy(options: RunOptions) -> Policy:
    kinds = options.retry_on if isinstance(options.retry_on, tuple) else (options.retry_on,)
    return Policy(options.on_error, options.show_data, kinds, options.max_retries)


def _stages(plan: Plan, options: RunOptions) -> tuple[Stage, ...]:
    inline = options.engine == "inline"
    stages = stages_of(
        plan, machine.capacity(), workers=options.workers, memory_limit=options.memory_limit, fused=inline
    )
    return (replace(stages[0], workers=1, least=1, lanes=False),) if inline else stages


# ---------------------------------------------------------------- reading


Note = Callable[[str], None]


def _unnoted(report: str) -> None:
    """Nobody asks how the run was."""


def read(plan: Plan, options: RunOptions, note: Note = _unnoted) -> Iterator[pa.RecordBatch]:
    """Yield the plan's output in order, in bounded memory; ends the workers when the reader stops.

    ``note`` is told in a few lines how the run was, when it has ended.
    """
    return _stream(plan, options, "blocks", note)


def count(plan: Plan, options: RunOptions, note: Note = _unnoted) -> int:
    """Count the plan's output rows without moving them."""
    tally, stream = _prepared(plan, options, "count")
    for _ in _noted(tally, stream, plan, note):
        pass
    return tally.ledger.written


def _stream(plan: Plan, options: RunOptions, kind: str, note: Note = _unnoted) -> Iterator[pa.RecordBatch]:
    tally, stream = _prepared(plan, options, kind)
    yield from _noted(tally, stream, plan, note)


def _noted(
    tally: Tally, stream: Iterator[pa.RecordBatch], plan: Plan, note: Note
) -> Iterator[pa.RecordBatch]:
    """Pass on the rows of a run that leaves nothing behind, and say at its end what it was like."""
    from millrace.observers.summary import reading
    from millrace.plan.logical import step_label

    started = time.monotonic()
    ended = False
    try:
        yield from stream
        ended = True
    finally:
        labels = [step_label(step) for step in plan.steps]
        note(reading(tally.ledger, tally.timings, time.monotonic() - started, labels, ended=ended))


def _prepared(plan: Plan, options: RunOptions, kind: str) -> tuple[Tally, Iterator[pa.RecordBatch]]:
    from millrace.run.allowance import Allowance
    from millrace.run.runner import Runner, Tally
    from millrace.run.scheduler import Scheduler
    from millrace.run.schemas import merge

    tally = Tally()
    shards, declared = _plan_shards(plan, options)
    if not shards or (len(shards) == 1 and not declared):
        options = replace(options, engine="inline")  # one worker suffices, and this process is at hand

    def stream() -> Iterator[pa.RecordBatch]:
        workplace = _Workplace.open(plan, options)
        try:
            programs = workplace.programs(plan, kind, options, shards)
            scheduler = Scheduler(
                shards,
                merge=merge,
                limits=compiler.limits_of(plan.steps),
                reading=kind in ("blocks", "look"),
                max_attempts=options.max_attempts,
                ahead=workplace.ahead(shards),
                fed=len(workplace.stages) > 1,
            )
            runner = Runner(
                scheduler,
                tally,
                supply=workplace.supply(options),
                bounds=workplace.bounds,
                allowance=Allowance(options.max_errors),
                suspicion=_suspicion(plan, options),
                stall_timeout=options.stall_timeout,
                relief=workplace.relief(shards),
            )
            yield from workplace.drive(runner, programs, options)
            if tally.ledger.rejected and kind != "look":
                _warn_of_rejects(tally)
        finally:
            workplace.close()

    return tally, stream()


def _suspicion(plan: Plan, options: RunOptions) -> Suspicion:
    from millrace.run.suspicion import Suspicion

    return Suspicion(options.batch_timeout, raises=options.on_error == "raise", locate=plan.source.locate)


def _warn_of_rejects(tally: Tally) -> None:
    import warnings

    from millrace.run.allowance import told

    warnings.warn(
        f"{tally.ledger.rejected:,} of {tally.ledger.read:,} rows failed and are left out: {told(tally.faults)}. "
        "Writing the output keeps them in a folder of their own.",
        stacklevel=2,
    )


def _plan_shards(plan: Plan, options: RunOptions) -> tuple[list[Shard], bool]:
    """Return a plan's shards, and whether a step says what workers it needs."""
    compiler.columns_at(plan.steps, plan.source.schema())
    stages = _stages(plan, options)
    cuts = cutting.cuts_of(stages, plan.source, options.shard_rows)
    return cuts.shards(plan.source), any(map(cutting.is_declared, stages))


def head(plan: Plan, rows: int, options: RunOptions) -> Iterator[pa.RecordBatch]:
    """Yield the first ``rows`` rows, made in this process; reads no further than needed."""
    from millrace.plan.logical import Limit

    return _stream(plan.then(Limit(rows)), replace(options, engine="inline", shard_rows=1), "look")


def static_schema(plan: Plan) -> pa.Schema:
    """Return the output schema without reading a row; falls back on the source's where only rows would tell."""
    from millrace.run.steps import schema_by_trying

    schema = plan.source.schema()
    return schema_by_trying(plan.steps, schema) or schema


def known_count(plan: Plan, options: RunOptions) -> int | None:
    """Return the number of output rows if metadata tells: no step changes it but ``limit``, and no row may fail."""
    from millrace.plan.logical import Drop, Limit, MapRows, Predict, Rename, Select

    compiler.columns_at(plan.steps, plan.source.schema())
    splits = plan.source.splits()
    if any(split.rows < 0 for split in splits):
        return None
    rows = sum(split.rows for split in splits)
    if options.on_error != "raise" and plan.steps:
        return None
    for step in plan.steps:
        if isinstance(step, Limit):
            rows = min(rows, step.rows)
        elif not isinstance(step, (MapRows, Predict, Select, Drop, Rename)):
            return None
    return rows


# ---------------------------------------------------------------- writing


def write(plan: Plan, complete: Callable[[Plan], Plan], options: RunOptions) -> Result:
    """Carry a plan out, or go on where an earlier driver stopped.

    ``complete`` gives the plan its sink; it is called when the first workers are on their way.
    """
    started = time.monotonic()
    workplace = _Workplace.open(plan, options)
    try:
        plan = complete(plan)
        compiler.columns_at(plan.steps, plan.source.schema())
        from millrace.run.resume import Wish, open_job

        wish = Wish(
            options.mode,
            options.on_change,
            options.durability,
            workplace.cuts,
            __version__,
        )
        with open_job(plan, wish) as job:
            if job.complete:
                result = _result(job, _finished(job, 0.0), job.committer.state.ledger.read)
                _say(options, f"finished in an earlier run, nothing to do: {result.summary}")
                return result
            return _write(job, options, workplace, started)
    finally:
        workplace.close()


def _write(job: Job, options: RunOptions, workplace: _Workplace, started: float) -> Result:
    from millrace.run.allowance import Allowance
    from millrace.run.runner import Runner
    from millrace.run.scheduler import Scheduler
    from millrace.run.schemas import merge

    committer, state = job.committer, job.committer.state
    plan = replace(job.plan, sink=committer.sink)
    limits = compiler.limits_of(plan.steps)
    rows_before = state.ledger.read
    used = state.passed or [0] * len(limits)
    scheduler = Scheduler(
        job.shards,
        merge=merge,
        done=bytearray(state.done),
        schema=_asked_schema(plan, state.schema),
        revision=state.revision,
        limits=[limit - passed for limit, passed in zip(limits, used, strict=True)],
        max_attempts=options.max_attempts,
        ahead=workplace.ahead(job.shards),
        fed=len(workplace.stages) > 1,
    )
    watchers = Watchers.of(options)
    pending = [shard for shard in job.shards if not state.done[shard.index]]
    programs = workplace.programs(plan, "write", options, pending)
    watchers.on_event(_started(job, workplace.workers))
    committer.on_published = partial(_tell_published, watchers)
    supply = workplace.supply(options)
    runner = Runner(
        scheduler,
        committer,
        supply=supply,
        bounds=workplace.bounds,
        watch=watchers.on_event,
        tick=watchers.tick,
        allowance=Allowance(options.max_errors, state.ledger, state.faults),
        suspicion=_suspicion(plan, options),
        stall_timeout=options.stall_timeout,
        relief=workplace.relief(job.shards),
    )
    try:
        for _ in workplace.drive(runner, programs, options):
            pass
        _write_schema_only(job, scheduler)
        seconds = time.monotonic() - started
        committer.finish(seconds, {"ledger": _ledger(job)})
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            watchers.close()
            kept = f"{state.ledger.written:,} rows are kept in {job.output.root}"
            _say(
                options,
                f"\nInterrupted; {kept if state.ledger.written else 'nothing was committed yet'}. Run "
                "the same command again to go on.",
            )
        elif isinstance(error, StepError) and not isinstance(error, TooManyErrors) and state.ledger.written:
            error.args = (
                f"{error} The {state.ledger.written:,} rows that were committed before are kept in "
                f"{job.output.root}: mend it, and run again with on_change='continue'.",
            )
        watchers.on_event(_finished(job, time.monotonic() - started, f"{type(error).__name__}: {error}"))
        raise
    finally:
        watchers.close()
    event = _finished(
        job,
        seconds,
        retries=scheduler.retries,
        stages=workplace.uses(supply, seconds),
        ceilings=watchers.ceilings.settled(),
        retried=watchers.retried(),
        retired=watchers.retired,
        divided=watchers.divided,
        batches=watchers.sizes.settled(),
    )
    watchers.on_event(event)
    result = _result(job, event, rows_before)
    _say(options, result.summary)
    return result


def _say(options: RunOptions, text: str) -> None:
    """Leave a last word on the terminal or in the log, where progress was shown."""
    if options.progress is not False:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody listens any more
            print(text, file=sys.stderr)


def _asked_schema(plan: Plan, settled: bytes | None) -> bytes | None:
    """Return the output schema if it is known before any row: settled by an earlier driver, or by the user."""
    from millrace.core.batch import schema_bytes

    if settled is None and plan.output_schema is not None:
        if plan.sink is not None:
            plan.sink.check_schema(plan.output_schema)
        return schema_bytes(plan.output_schema)
    return settled


def _write_schema_only(job: Job, scheduler: Scheduler) -> None:
    """An output without any row still gets one part, so that a reader finds its columns."""
    from millrace.core.batch import schema_from
    from millrace.core.work import CommitRecord, Ledger, Shard, Task

    state, sink = job.committer.state, job.committer.sink
    job.committer.flush()
    if state.files:
        return
    schema = scheduler.schema or scheduler.empty_schema
    if schema is None:
        schema = _schema_without_rows(job.plan)
    if schema is None:
        return
    lone = len(job.shards)
    writer = sink.open(Task(Shard(lone, ()), 0), schema_from(schema))
    files = writer.close()
    writer.sync()
    job.committer.commit(CommitRecord(lone, 0, state.revision, files, Ledger()))
    job.committer.flush()


def _schema_without_rows(plan: Plan) -> bytes | None:
    """Return the output schema of a plan whose source has no row, if its functions can do without."""
    from millrace.core.batch import schema_bytes
    from millrace.run.steps import schema_by_trying

    schema = schema_by_trying(plan.steps, plan.source.schema())
    return schema_bytes(schema) if schema is not None else None


def _started(job: Job, workers: int) -> RunStarted:
    state = job.committer.state
    rows = 0
    for shard in job.shards:
        if shard.rows < 0:
            rows = -1
            break
        rows += shard.rows
    known = known_count(job.plan, RunOptions())  # with a limit, fewer than there are
    rows = rows if known is None or rows < 0 else min(rows, known)
    done = len(state.done) - state.done.count(0)
    run, root = job.committer.plan.run, str(job.output.root)
    return RunStarted(run, root, len(job.shards), done, state.ledger.read, rows, workers)


def _tell_published(watchers: Watchers, record: CommitRecord) -> None:
    size = sum(file.size for file in record.files)
    watchers.on_event(ShardCommitted(record.shard, record.attempt, record.ledger, size, record.timings))


def _finished(
    job: Job,
    seconds: float,
    error: str = "",
    retries: int = 0,
    stages: tuple[StageUse, ...] = (),
    ceilings: tuple[Ceiling, ...] = (),
    retried: tuple[tuple[str, str, int], ...] = (),
    retired: int = 0,
    divided: int = 0,
    batches: tuple[Batches, ...] = (),
) -> RunFinished:
    state = job.committer.state
    return RunFinished(
        job.committer.plan.run,
        str(job.output.root),
        state.ledger,
        state.timings,
        state.bytes,
        state.files,
        seconds or state.seconds,
        error,
        retries,
        stages,
        ceilings,
        state.faults,
        retried,
        retired,
        divided,
        batches,
    )


def _ledger(job: Job) -> dict[str, Any]:
    from millrace.plan.logical import step_label

    ledger = job.committer.state.ledger
    steps = [
        {"step": step_label(step), "rows_in": taken, "rows_out": given, "rejected": aside}
        for step, (taken, given), aside in zip(job.plan.steps, ledger.steps, ledger.rejects, strict=False)
    ]
    whole = {name: getattr(ledger, name) for name in ("read", "written", "rejected", "nulled")}
    return {**whole, "steps": steps}


def _result(job: Job, event: RunFinished, rows_before: int = 0) -> Result:
    from millrace.observers.summary import summary
    from millrace.plan.logical import step_label

    return Result(
        rows=event.ledger.written,
        rejected=event.ledger.rejected,
        metrics={},
        ledger=event.ledger,
        report=Path(event.output) / "_SUCCESS",
        path=Path(event.output),
        run=event.run,
        files=event.files,
        bytes=event.bytes,
        seconds=event.seconds,
        resumed=job.resumed,
        left_out=job.committer.left_out,
        summary=summary(
            event,
            steps=[step_label(step) for step in job.plan.steps],
            rows_before=rows_before,
            left_out=job.committer.left_out,
        ),
    )
