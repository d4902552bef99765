"""Writing a plan's output: composes engine, source, sink, scheduler and committer."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millrace.launch as launch
from millrace.core.events import MetricsCounted, RunFinished, RunStarted, ShardCommitted
from millrace.describing import describe
from millrace.errors import (
    REFUSALS,
    MillraceError,
    OutputSchemaChanged,
    StepError,
    TooManyErrors,
    data_hidden,
)
from millrace.execution import known_count
from millrace.options import RunOptions
from millrace.outputs import reporting
from millrace.plan import compile as compiler
from millrace.plan.cuts import coarser
from millrace.plan.logical import Plan
from millrace.result import Metrics, Result
from millrace.screen import say
from millrace.version import __version__
from millrace.watchers import Watchers
from millrace.workplace import Workplace, warn_of_inline

if TYPE_CHECKING:
    from millrace.core.work import CommitRecord
    from millrace.run.resume import Job
    from millrace.run.scheduler import Scheduler

# The modules of `run` and the sources import pyarrow. They are imported inside the functions below, after the
# first workers have been started, so that driver and workers do their slow imports at the same time.


def write(plan: Plan, complete: Callable[[Plan], Plan], options: RunOptions) -> Result:
    """Carry a plan out, or go on where an earlier driver stopped.

    ``complete`` gives the plan its sink; it is called when the first workers are on their way.
    """
    started = time.monotonic()
    warn_of_inline(options)
    command = launch.current()
    if command is not None:
        command.begins()
    workplace = Workplace.open(plan, options)
    try:
        with data_hidden(hide=not options.show_data):
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
                reporting.keep(job.output.root, job.committer.folder)
                result = _result(job, _finished(job, 0.0), _metrics(job)[0], job.committer.state.ledger.read)
                _say(options, f"finished in an earlier run, nothing to do: {result.summary}")
            else:
                if command is not None:
                    command.keep(job.output.folder(job.committer.plan.run), job.output.root)
                result = _write(job, options, workplace, started)
            if command is not None:
                command.results.append(result)
            return result
    finally:
        workplace.close()


def _write(job: Job, options: RunOptions, workplace: Workplace, started: float) -> Result:
    from millrace.metrics import reported
    from millrace.run.accounts import Accounts
    from millrace.run.allowance import Allowance
    from millrace.run.counting import STATES
    from millrace.run.failures import name_of, of_the_user, words
    from millrace.run.runner import Runner
    from millrace.run.scheduler import Scheduler
    from millrace.run.schemas import merge

    committer, state = job.committer, job.committer.state
    plan = replace(job.plan, sink=committer.sink)
    limits = compiler.limits_of(plan.steps)
    rows_before = state.ledger.read
    schema = _asked_schema(plan, state.schema)
    if schema is not None and state.schema is None:
        committer.settle(schema)
    used = state.passed or [0] * len(limits)
    scheduler = Scheduler(
        job.shards,
        merge=merge,
        done=bytearray(state.done),
        schema=schema,
        revision=state.revision,
        limits=[limit - passed for limit, passed in zip(limits, used, strict=True)],
        max_attempts=options.max_attempts,
        ahead=workplace.ahead(job.shards),
        fed=len(workplace.stages) > 1,
    )
    coarse = coarser(job.shards, options.shard_rows)
    if coarse and not job.resumed:
        _say(options, f"millrace: {coarse}")
    pending = [shard for shard in job.shards if not state.done[shard.index]]
    states = str(committer.folder / STATES)
    programs = workplace.programs(plan, "write", options, pending, states=states)
    watchers = Watchers.of(options, committer.folder)
    command = launch.current()
    if command is not None and command.observer is not None:
        watchers.add(command.observer)
    elapsed = time.monotonic() - started
    watchers.on_event(describe(committer.plan.run, plan, options, workplace, job.shards, elapsed=elapsed))
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
        suspicion=workplace.suspicion(),
        stall_timeout=options.stall_timeout,
        relief=workplace.relief(tight=state.tight),
        commit_every=options.commit_every or 0.0,
        accounts=Accounts(plan.steps, writes=True),
    )
    try:
        with reporting.prepared():
            for _ in workplace.drive(runner, programs, options):
                pass
        _write_schema_only(job, scheduler)
        if options.on_error != "raise" and not state.ledger.rejected:
            _note_columns(job)
        metrics, charts = _metrics(job)
        seconds = time.monotonic() - started
        committer.finish(seconds, {"ledger": _ledger(job), **reported(metrics)})
    except BaseException as error:
        trace = of_the_user(error) if options.show_data else ""
        _explain_end(job, options, watchers, error)
        said = error if isinstance(error, MillraceError) else words(error)
        told = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{name_of(error)}: {said}"
        seconds = time.monotonic() - started
        found = watchers.findings(seconds)
        watchers.on_event(
            _finished(job, seconds, error=told, trace=trace, retries=scheduler.retries, **found)
        )
        watchers.close()
        if not (committer.empty and isinstance(error, REFUSALS)):
            reporting.leave(job.output.root, committer.folder, values=options.report_values)
        raise
    try:
        if metrics:
            watchers.on_event(_counted(metrics, charts))
        event = _finished(
            job,
            seconds,
            retries=scheduler.retries,
            **watchers.findings(seconds),
        )
        watchers.on_event(event)
    finally:
        watchers.close()
    reporting.leave(job.output.root, committer.folder, values=options.report_values)
    result = _result(job, event, metrics, rows_before)
    _say(options, f"{result.summary}\nreport: {result.report}")
    return result


def _explain_end(job: Job, options: RunOptions, watchers: Watchers, error: BaseException) -> None:
    """Say of a run that ends early what is kept of it: on the terminal, or in the error."""
    written, root = job.committer.state.ledger.written, job.output.root
    if isinstance(error, KeyboardInterrupt):
        watchers.close()
        kept = f"{written:,} rows are kept in {root}" if written else "nothing was committed yet"
        _say(options, f"\nInterrupted; {kept}. Run the same command again to go on.")
    elif isinstance(error, OutputSchemaChanged) and written:
        error.args = (f"{error} Until then, the {written:,} rows that were committed before stay in {root}.",)
    elif isinstance(error, StepError) and not isinstance(error, TooManyErrors) and written:
        error.args = (
            f"{error} The {written:,} rows that were committed before are kept in {root}: mend it, and run again "
            "with on_change='continue'.",
        )


def _say(options: RunOptions, text: str) -> None:
    """Leave a last word on the terminal or in the log, where progress was shown."""
    if options.progress is not False:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody listens any more
            say(text, sys.stderr)


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


def _note_columns(job: Job) -> None:
    """Keep the source's columns, so that its rejected rows have them although there is none."""
    from millrace.core.batch import schema_bytes
    from millrace.core.rejected import COLUMNS
    from millrace.run.output import write_whole

    place = job.output.folder(job.committer.plan.run) / COLUMNS
    write_whole(place, schema_bytes(job.plan.source.schema()))


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
    before = state.ledger
    return RunStarted(
        run,
        root,
        len(job.shards),
        done,
        before.read,
        rows,
        workers,
        before.written,
        before.rejected,
        before.nulled,
        state.bytes,
    )


def _tell_published(watchers: Watchers, record: CommitRecord) -> None:
    size = sum(file.size for file in record.files)
    watchers.on_event(ShardCommitted(record.shard, record.attempt, record.ledger, size, record.timings))


def _finished(job: Job, seconds: float, **found: Any) -> RunFinished:
    """Say how the run ended; ``found`` are fields that the journal does not tell."""
    state = job.committer.state
    return RunFinished(
        job.committer.plan.run,
        str(job.output.root),
        state.ledger,
        state.timings,
        state.bytes,
        state.files,
        seconds or state.seconds,
        faults=state.faults,
        **found,
    )


def _ledger(job: Job) -> dict[str, Any]:
    from millrace.observers.summary import steps_of
    from millrace.plan.logical import step_label

    ledger = job.committer.state.ledger
    steps = steps_of(ledger, list(map(step_label, job.plan.steps)))
    whole = {name: getattr(ledger, name) for name in ("read", "written", "rejected", "nulled")}
    return {**whole, "steps": steps}


def _metrics(job: Job) -> tuple[Metrics, dict[str, Any]]:
    """Merge what the metrics of all committed shards counted; return results, and data to draw them."""
    metrics, committer = job.plan.metrics, job.committer
    if not metrics:
        return Metrics(notes={}), {}
    from millrace.metrics import charts, collected
    from millrace.run.counting import merged

    totals = merged(metrics, committer.states(job.shards), committer.folder)
    return collected(metrics, totals), charts(metrics, totals)


def _counted(metrics: Metrics, charts: dict[str, Any]) -> MetricsCounted:
    from millrace.metrics import plain

    return MetricsCounted(plain(metrics), metrics.notes, charts)


def _result(job: Job, event: RunFinished, metrics: Metrics, rows_before: int = 0) -> Result:
    from millrace.metrics import lines
    from millrace.observers.summary import summary
    from millrace.plan.logical import step_label

    return Result(
        rows=event.ledger.written,
        rejected=event.ledger.rejected,
        metrics=metrics,
        ledger=event.ledger,
        report=job.committer.folder / reporting.REPORT,
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
            metrics=lines(metrics),
        ),
    )
