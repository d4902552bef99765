"""Writing a plan's output: open the folder, run what is not done, and return the result."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.core.door import annex
from headrace.core.files.safe_files import KEPT
from headrace.core.human import plural
from headrace.core.process import importing
from headrace.core.terminal import fitting, in_notebook, say, warn
from headrace.errors import (
    REFUSALS,
    ArgumentError,
    HeadraceError,
    OutputSchemaChanged,
    RequirementNotMet,
    SchemaMismatch,
    SinkError,
    SourceError,
    StepError,
    TooManyErrors,
    data_hidden,
)
from headrace.observers.summary import findings
from headrace.options import RunOptions
from headrace.output.runs import begin_record
from headrace.plan import compile as compiler
from headrace.plan.logical import Plan
from headrace.plan.partitioning import oversized_shards
from headrace.result import Metrics, Result
from headrace.session import invocation, job_events
from headrace.session.build_runner import Resumed
from headrace.session.context import Run, RunContext, warn_of_inline
from headrace.session.event_bus import EventBus, environment_observers, progress_shown
from headrace.session.invocation import Requests, committing
from headrace.session.preparing import prepared_in_output, work_ahead
from headrace.session.provenance import describe, needs_every_row
from headrace.session.read import committed
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.core.files.staged import Uploads
    from headrace.core.messages import MoreShards, RunInterrupted
    from headrace.driver.scheduler import Scheduler
    from headrace.observers.progress import Progress
    from headrace.output.job import Job, OpenRequest

# This module is imported once the first worker has been started, and so is all that it imports.


def write(context: RunContext, complete: Callable[[Plan], Plan], started: float) -> Result:
    """Run the plan of ``context`` into its output, or go on where an earlier driver stopped.

    ``complete`` gives the plan its sink. ``started``: when the verb was called, by ``time.monotonic``.
    """
    plan, options = context.execution.plan, context.options
    options = options.updated({"observers": (*environment_observers(), *options.observers)})
    command = invocation.current()
    if command is not None:
        command.check_writes()
    with progress_shown(options) as progress:
        warn_of_inline(context.execution)
        with data_hidden(hide=not options.show_data):
            with importing():  # Arrow and numpy
                plan = complete(plan)
            compiler.columns_at(plan.steps, plan.source.known_schema())
        if plan.requirements:
            from headrace.session.publishing import check_others

            check_others(plan)
        from headrace.output.job import OpenRequest
        from headrace.output.resume import open_job
        from headrace.output.seen_keys import prepare_keys

        context.execution.plan = plan  # with its sink
        partitioning = context.execution.partitioning
        retries = options.refresh == "rejected"
        request = OpenRequest(
            "resume" if retries else options.mode,
            options.on_change,
            options.durability,
            partitioning,
            __version__,
            options.incremental,
            options.refresh == "changed",
            bool(plan.requirements),
            retries,
            partial(prepared_in_output, context, progress),
        )
        if retries or options.fix is not None:
            from headrace.session.retrying import check_retry

            check_retry(plan, options)
        opened: AbstractContextManager[Job] = (
            open_job(plan, request) if not options.fleet else _fleet_job(plan, request, context, progress)
        )
        with opened as job:
            if retries:
                _retry(job, context, options, progress, started)
            if job.complete:
                result = _finished_before(job, options)
            else:
                if command is not None:
                    command.record(job.output.folder(job.committer.plan.run), job.output.place.at())
                prepare_keys(job.committer, job.plan, on_error=options.on_error)
                result = _write(job, context, options, progress, started)
            if command is not None:
                command.results.append(result)
            return result


def _retry(
    job: Job, context: RunContext, options: RunOptions, progress: Progress | None, started: float
) -> None:
    """Complete the run first, if it is not; then try its rejected rows again. What came of them is not shown yet."""
    from headrace.session.retrying import retry

    hidden, open_shards = job.committer.revealing.aside, not all(job.committer.state.done)
    if not job.complete and (open_shards or not hidden):
        with contextlib.suppress(RequirementNotMet):  # all are asked for in the end
            _write(job, context, options, progress, started)

    succeeded, tried = retry(job, options, lambda inner, context: drive(inner, context, progress))
    if job.complete:  # nothing is another
        job.output.tidy(job.committer.plan.run)
    if tried:
        _say(options, f"{plural(tried, 'rejected row')} tried again: {plural(succeeded, 'row')} succeeded")
    context.begin_again()


class Supply(Protocol):
    """Where further shards of a run come from: ``want`` asks for some, and returns at once."""

    answer: Callable[[MoreShards | RunInterrupted], None]

    def want(self) -> None: ...


def drive(job: Job, context: RunContext, progress: Progress | None, supply: Supply | None = None) -> None:
    """Carry out a run whose output is a part of another one: it is not finished, and nothing is said of it."""
    with contextlib.closing(EventBus.of(context.options, job.committer.folder, progress)) as events:
        run = _composed(job, context, events, time.monotonic(), supply)
        if supply is not None:
            supply.answer = partial(run.runner.notify, -1)
        _drive(job, run, events, grows=supply is not None)


def _fleet_job(
    plan: Plan, request: OpenRequest, context: RunContext, progress: Progress | None
) -> AbstractContextManager[Job]:
    """Work on the output with other machines; return it with all that they have made."""
    fleets = annex("fleet.writing")
    if fleets is None:
        raise ArgumentError("fleet=True needs headrace.annex.fleet, which is not installed here.")

    def work(machine: Any) -> None:
        if machine.shares:
            context.begin_again(machine.job.plan.steps)
        try:
            drive(machine.job, context, progress, machine)
        finally:
            context.begin_again()

    found: AbstractContextManager[Job] = fleets.fleet_job(plan, request, context.options, work)
    return found


def _finished_before(job: Job, options: RunOptions) -> Result:
    """Return the recorded result of a run that has nothing left to do."""
    if options.report and job.output.held:
        job_events.report(job.output, job.committer.folder, missing=True)
    metrics, _ = job_events.metrics_of(job)
    if job.plan.requirements:
        from headrace.session.publishing import ask_finished

        ask_finished(job, metrics)
    job.output.tidy(job.committer.plan.run)  # a driver may have been killed before it did
    event = job_events.finished(job, 0.0)
    result = job_events.result_of(job, event, metrics, job.committer.state.ledger.read)
    before = "nothing is new, nothing to do" if options.incremental else "nothing to do"
    _say(options, f"{before}: {result.summary}")
    return result


def _write(
    job: Job, context: RunContext, options: RunOptions, progress: Progress | None, started: float
) -> Result:
    """Run the shards that are not done, finish the output and report."""
    committer = job.committer
    rows_before = 0 if options.fleet else committer.state.ledger.read
    begin_record(committer.folder, len(committer.state.runs))
    events = EventBus.of(options, committer.folder, progress)
    with contextlib.closing(events):
        run = _composed(job, context, events, started)
        try:
            with _report_prepared(options):
                if job.plan.metrics:
                    events.add(job_events.MetricsSoFar(job, events.on_event))
                _drive(job, run, events)
            metrics, seconds = _finish(job, run.scheduler, options, events, started)
        except BaseException as error:
            _fail(job, run, events, error, started)
            raise
        found = findings(events.state, seconds)
        event = job_events.finished(job, seconds, retries=run.scheduler.retries, **found)
        events.on_event(event)
        if options.report:  # before observers are closed: one may pass it on
            job_events.report(job.output, job.committer.folder)
    result = job_events.result_of(job, event, metrics, rows_before)
    first = result.summary.split("\n")[0]  # in a notebook, the result shows the rest
    report = f"\nreport: {result.report}" if options.report else ""
    _say(options, first if in_notebook() else f"{result.summary}{report}")
    return result


def _drive(job: Job, run: Run, events: EventBus, *, grows: bool = False) -> None:
    """Drive a run to its end; raises ``KeyboardInterrupt`` if it was asked to stop before that.

    ``grows``: further shards may come.
    """
    options = run.context.options
    work_ahead(job, options, events, _kept(job), grows=grows)
    events.on_event(job_events.started(job, run.context.execution.workers))
    every_row = needs_every_row(job.plan)
    events.add(Requests(job.committer.folder, partial(run.runner.notify, -1), every_row=every_row))
    with _committing(run, options):
        run.drive()
    if run.scheduler.stopped:
        raise KeyboardInterrupt


def _committing(run: Run, options: RunOptions) -> AbstractContextManager[None]:
    """Have the first Ctrl-C commit what is done; a worker that is this process cannot."""
    if options.traits.in_process:
        return contextlib.nullcontext()
    words = "\nInterrupted: finished work is being saved. Press Ctrl-C again to stop at once."
    return committing(run.runner.interrupt, lambda: _say(options, words))


def _composed(
    job: Job, context: RunContext, events: EventBus, started: float, supply: Supply | None = None
) -> Run:
    """Put the run together from the state of its journal, and say what it is."""
    from headrace.core.metric_states import STATES

    committer = job.committer
    plan = replace(job.plan, sink=committer.sink)
    coarse = oversized_shards(job.planned, context.options.shard_rows)
    if coarse and not job.resumed:
        _say(context.options, f"headrace: {coarse}")
    if job.interrupted:
        context.leave_to_workers()
    run = context.compose(
        plan,
        "write",
        job.shards,
        committer,
        resumed=Resumed.of(committer.state, _settled_schema(job, plan)),
        events=events,
        states=str(committer.folder / STATES),
        folder=_kept(job),
        uploads=_uploads(job, context.options),
        want=None if supply is None else supply.want,
    )
    _announce(job, plan, context, events, started)
    committer.on_published = lambda record: events.on_event(committed(record))
    return run


def _kept(job: Job) -> str:
    """Return the folder for what models keep; "" where it would not outlive the driver, as beside a store."""
    return str(job.committer.folder / KEPT) if isinstance(job.output.place.at(), Path) else ""


def _uploads(job: Job, options: RunOptions) -> Uploads | None:
    """Return how workers upload that do not see where the output is staged, as those on other machines."""
    return job.output.place.uploads(job.committer.plan.run) if options.traits.is_cluster else None


def _announce(job: Job, plan: Plan, context: RunContext, events: EventBus, started: float) -> None:
    """Send the events that describe a run."""
    elapsed = time.monotonic() - started
    about = describe(
        job.committer.plan.run,
        plan,
        context.execution,
        job.planned,
        elapsed=elapsed,
        code=job.committer.state.code,
        output=str(job.output),
    )
    events.on_event(about)
    for made in (*plan.source.preparations(), job.machines):
        if made is not None:
            events.on_event(made)


def _finish(
    job: Job, scheduler: Scheduler, options: RunOptions, events: EventBus, started: float
) -> tuple[Metrics, float]:
    """Complete the output, all shards of which are committed; return the metrics, and the seconds."""
    from headrace.session.read import reported

    _write_schema_only(job, scheduler)
    if options.on_error != "raise" and not job.committer.state.ledger.rejected:
        _save_source_columns(job)
    metrics, charts = job_events.metrics_of(job)
    if metrics:
        events.on_event(job_events.counted(metrics, charts))
    seconds = time.monotonic() - started
    summary: dict[str, Any] = {"ledger": job_events.ledger_of(job), **reported(metrics)}
    if made := job.plan.source.preparations():
        summary["queries"] = msgspec.to_builtins(made)
    older = job_events.older_of(job)
    if older is not None:
        summary["older"] = older.data()
    if job.plan.requirements:
        from headrace.session.publishing import ask

        ask(job, metrics, events, seconds, summary)
    job.committer.finish(seconds, summary)
    return metrics, seconds


def _fail(job: Job, run: Run, events: EventBus, error: BaseException, started: float) -> None:
    """Report a run that ends early: to the user, to the observers, and in its report."""
    from headrace.core.failures import name_of, of_the_user, words

    options, committer = run.context.options, job.committer
    trace = of_the_user(error) if options.show_data else ""
    _add_committed_rows(job, error)
    message = error if isinstance(error, HeadraceError) else words(error)
    text = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{name_of(error)}: {message}"
    row = error.row if isinstance(error, HeadraceError) else ""
    # A record may be passed on; its report shows values if asked to.
    text = text.replace(row, "") if row else text
    seconds = time.monotonic() - started
    found = findings(events.state, seconds)
    event = job_events.finished(
        job,
        seconds,
        error=text,
        row=row.lstrip(": "),
        trace=trace,
        retries=run.scheduler.retries,
        **found,
    )
    events.on_event(event)
    reported = not (committer.empty and isinstance(error, REFUSALS))
    if reported and options.report:
        job_events.report(job.output, job.committer.folder)
    events.close()
    if isinstance(error, KeyboardInterrupt):  # below the last line of the progress
        written = committer.state.ledger.written
        committed = f"{plural(written, 'row')} kept in {job.output}" if written else "no rows were saved yet"
        again = "cell" if in_notebook() else "command"
        _say(options, f"\nInterrupted; {committed}. Run the same {again} again to go on.")


def _report_prepared(options: RunOptions) -> AbstractContextManager[None]:
    reports = annex("report.writing") if options.report else None
    return reports.assets_loaded() if reports is not None else contextlib.nullcontext()


def _add_committed_rows(job: Job, error: BaseException) -> None:
    """Add to an error which rows of the run are committed."""
    written, root = job.committer.state.ledger.written, job.output
    if isinstance(error, OutputSchemaChanged) and written:
        error.args = (f"{error} Until then, finished work stays in {root}: {plural(written, 'row')}.",)
    elif isinstance(error, StepError) and not isinstance(error, TooManyErrors) and written:
        error.args = (
            f"{error} What was finished before is kept in {root}: {plural(written, 'row')}. Correct the code, and "
            "run again with on_change='continue'.",
        )
    elif isinstance(error, SinkError | SourceError) and error.foreign_cause and written:
        kept = f"What was finished before is kept in {root}: {plural(written, 'row')}"
        error.args = (f"{error} {kept}. Correct the code, and run the same program again.",)


def _say(options: RunOptions, text: str) -> None:
    """Print a line to standard error, unless progress is off."""
    if options.progress is not False:
        command = invocation.current()
        stream = sys.stdout if in_notebook() else sys.stderr  # which a notebook shows as an error
        with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error is closed
            told = text if command is None else command.words(text)
            say(fitting(told, stream), stream)


def _settled_schema(job: Job, plan: Plan) -> bytes | None:
    """Return the output schema if it is known before any row: settled by an earlier driver, or now, by the user."""
    from headrace.core.arrow.batch import schema_bytes

    settled = job.committer.state.schema
    if settled is not None or plan.output_schema is None:
        return settled
    if plan.sink is not None:
        plan.sink.check_schema(plan.output_schema)
    asked = schema_bytes(plan.output_schema)
    job.committer.settle(asked)
    return asked


def _write_schema_only(job: Job, scheduler: Scheduler) -> None:
    """Write one part for an output without any row, so that a reader finds its columns."""
    import pyarrow as pa

    from headrace.core.arrow.batch import schema_from
    from headrace.core.arrow.objects import without_objects
    from headrace.core.failures import opened
    from headrace.core.work import CommitRecord, Ledger, Shard, Task

    state, sink, guessed = job.committer.state, job.committer.sink, list[str]()
    job.committer.commit_accepted()
    if state.files:
        return
    schema = scheduler.schema or scheduler.empty_schema
    if schema is None:
        schema, guessed = _schema_without_rows(job.plan)
    if schema is None:
        return
    lone = len(job.shards)
    try:
        writer = opened(sink, Task(Shard(lone, ()), 0), without_objects(schema_from(schema), pa.null()))
    except SinkError:
        if not guessed:
            raise
        return  # no file of this format has such columns
    files = writer.close()
    writer.sync()
    if guessed and files and schema_from(schema).names and not state.ledger.rejected:
        warn(
            f"The output has no row, and {guessed[0]} cannot be run without rows. So the empty output has the "
            "columns from before that step, which is a guess. Give the right ones with `schema=`."
        )
    job.committer.accept(CommitRecord(lone, 0, state.revision, files, Ledger()))
    job.committer.commit_accepted()


def _save_source_columns(job: Job) -> None:
    """Save the source's columns: `read_rejected` gives them although no row was rejected."""
    from headrace.core.arrow.batch import schema_bytes
    from headrace.core.arrow.objects import TEXTS, without_objects
    from headrace.core.rejected import COLUMNS
    from headrace.output.publishing import write_whole

    place = job.output.folder(job.committer.plan.run) / COLUMNS
    write_whole(place, schema_bytes(without_objects(job.plan.source.schema(), TEXTS)))


def _schema_without_rows(plan: Plan) -> tuple[bytes | None, list[str]]:
    """Return the output schema of a plan whose source has no row, and the steps for which it is only a guess.

    For a table, which would keep such columns, nothing is guessed.
    """
    from headrace.core.arrow.batch import schema_bytes
    from headrace.session.combined import branch_plans
    from headrace.sources.union import unified
    from headrace.worker.steps.base import schema_by_trying

    sink, guessed = plan.sink, list[str]()
    kept = sink is not None and sink.target is not None
    made = [
        schema_by_trying(each.steps, each.source.schema(), guessed=None if kept else guessed)
        for each in branch_plans(plan) or [plan]
    ]
    try:
        return (None if None in made else schema_bytes(made[0] if len(made) == 1 else unified(made))), guessed
    except SchemaMismatch:  # what is guessed of one dataset does not fit another
        return None, guessed
