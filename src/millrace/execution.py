"""Reading a plan's output: composes engine, source and scheduler. Verbs call these functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.core.warn import warn
from millrace.errors import data_hidden
from millrace.options import RunOptions
from millrace.plan import compile as compiler
from millrace.plan import cuts as cutting
from millrace.plan.logical import Plan
from millrace.workplace import Workplace, stages_for, warn_of_inline

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.core.work import Shard
    from millrace.result import Metrics
    from millrace.run.runner import Tally

# The modules of `run` and the sources import pyarrow. They are imported inside the functions below, after the
# first workers have been started, so that driver and workers do their slow imports at the same time.


Note = Callable[[str], None]


def _unnoted(report: str) -> None:
    """Nobody asks how the run was."""


def read(
    plan: Plan, options: RunOptions, note: Note = _unnoted, *, marks: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the plan's output in order, in bounded memory; ends the workers when the reader stops.

    ``note`` is told in a few lines how the run was, when it has ended. ``marks``: columns keep those of their form.
    """
    return _stream(plan, options, "blocks", note, marks=marks)


def count(plan: Plan, options: RunOptions, note: Note = _unnoted) -> int:
    """Count the plan's output rows without moving them."""
    tally, stream = _prepared(plan, options, "count")
    for _ in _noted(tally, stream, plan, note):
        pass
    return tally.ledger.written


def evaluate(plan: Plan, options: RunOptions, note: Note = _unnoted) -> Metrics:
    """Run the plan for its metrics; its rows go nowhere."""
    from millrace.metrics import collected

    tally, stream = _prepared(plan, options, "count", metrics=True)
    for _ in _noted(tally, stream, plan, note):
        pass
    return collected(plan.metrics, tally.totals())


def _stream(
    plan: Plan, options: RunOptions, kind: str, note: Note = _unnoted, *, marks: bool = False
) -> Iterator[pa.RecordBatch]:
    from millrace.core.forms import without_marks

    tally, stream = _prepared(plan, options, kind)
    for batch in _noted(tally, stream, plan, note):
        yield batch if marks else without_marks(batch)


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
        steps = plan.steps if len(plan.steps) == len(tally.ledger.steps) else plan.without_metrics().steps
        labels = [step_label(step) for step in steps]
        note(reading(tally.ledger, tally.timings, time.monotonic() - started, labels, ended=ended))


def _prepared(
    plan: Plan, options: RunOptions, kind: str, *, metrics: bool = False
) -> tuple[Tally, Iterator[pa.RecordBatch]]:
    from millrace.run.accounts import Accounts
    from millrace.run.allowance import Allowance
    from millrace.run.runner import Runner, Tally
    from millrace.run.scheduler import Scheduler
    from millrace.run.schemas import merge

    if not metrics:
        with data_hidden(hide=not options.show_data):
            compiler.columns_at(plan.steps, plan.source.schema())
        plan = plan.without_metrics()
    tally = Tally(plan.metrics)
    shards, declared = _plan_shards(plan, options)
    warn_of_inline(options)
    if not shards or (len(shards) == 1 and not declared and options.batch_timeout is None):
        options = replace(options, engine="inline")  # one worker suffices, and this process is at hand

    def stream() -> Iterator[pa.RecordBatch]:
        workplace = Workplace.open(plan, options)
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
                suspicion=workplace.suspicion(),
                stall_timeout=options.stall_timeout,
                relief=workplace.relief(),
                accounts=Accounts(plan.steps, writes=False),
            )
            yield from workplace.drive(runner, programs, options)
            if tally.ledger.rejected and kind != "look":
                _warn_of_rejects(tally)
        finally:
            workplace.close()

    return tally, stream()


def _warn_of_rejects(tally: Tally) -> None:
    from millrace.run.allowance import told

    warn(
        f"{tally.ledger.rejected:,} of {tally.ledger.read:,} rows failed and are left out: {told(tally.faults)}. "
        "Writing the output keeps them in a folder of their own."
    )


def _plan_shards(plan: Plan, options: RunOptions) -> tuple[list[Shard], bool]:
    """Return a plan's shards, and whether a step says what workers it needs."""
    with data_hidden(hide=not options.show_data):
        compiler.columns_at(plan.steps, plan.source.schema())
        stages = stages_for(plan, options)
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
    for step in plan.without_metrics().steps:
        if isinstance(step, Limit):
            rows = min(rows, step.rows)
        elif not isinstance(step, (MapRows, Predict, Select, Drop, Rename)):
            return None
    return rows
