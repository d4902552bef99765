"""Running a plan to read its rows, count them or compute its metrics; and what metadata alone shows."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.core.files.artifacts import shortened
from headrace.core.human import metric_text
from headrace.core.metric_states import plain
from headrace.core.model_ports import Accumulator
from headrace.core.terminal import one_line, padded, warn, width
from headrace.errors import StepError, data_hidden
from headrace.options import RunOptions
from headrace.plan import compile as compiler
from headrace.plan import partitioning
from headrace.plan.functions import Function
from headrace.plan.logical import Plan
from headrace.plan.pickling import refusal
from headrace.plan.steps.base import OnBranch, Step, goes_through, paths_of
from headrace.result import Metrics
from headrace.session.context import RunContext, warn_of_inline
from headrace.session.engines import lacks_gpus
from headrace.session.event_bus import EventBus, progress_shown
from headrace.session.execution_plan import ExecutionPlan
from headrace.session.preparing import prepared_for_reading
from headrace.session.provenance import describe_reading

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.events import ShardCommitted
    from headrace.core.work import CommitRecord, Shard, Split
    from headrace.driver.ports import InMemoryCommitter


# ---------------------------------------------------------------- what becomes of counted metrics

_LINE = 100
_log = logging.getLogger("headrace")


def collected(metrics: Sequence[tuple[str, Accumulator]], totals: Sequence[Accumulator]) -> Metrics:
    """Return the results by name, with the notes that there are."""
    from headrace.accumulators.by import note_of  # imports numpy: not before workers have been started

    names = [name for name, _ in metrics]
    notes = {name: note_of(total) for name, total in zip(names, totals, strict=True)}
    results = {name: _result(name, total) for name, total in zip(names, totals, strict=True)}
    return Metrics(results, notes={name: note for name, note in notes.items() if note})


def _result(name: str, total: Accumulator) -> Any:
    try:
        return total.result()
    except Exception as error:
        raise StepError(f"accumulate({name}) failed: its result: {type(error).__name__}: {error}.") from error


def charts(metrics: Sequence[tuple[str, Accumulator]], totals: Sequence[Accumulator]) -> dict[str, Any]:
    """Return plain data for drawing what was counted, by name. What cannot be drawn is no reason to fail."""
    from headrace.accumulators.by import chart_of

    found = {}
    for (name, _), total in zip(metrics, totals, strict=True):
        try:
            chart = plain(chart_of(total))
        except Exception:
            _log.exception("The metric %s cannot be drawn; the report goes without its chart.", name)
            continue
        if chart is not None:
            found[name] = chart
    return found


def reported(found: Metrics) -> dict[str, Any]:
    """Return what the report says: plain JSON values."""
    notes = {"metrics_notes": found.notes} if found.notes else {}
    return {"metrics": plain(found), **notes} if found else {}


def lines(found: Metrics) -> list[str]:
    """Return a line for each metric.

    >>> lines(Metrics({"auc": 0.8312345678, "loss": None}, notes={"loss": "no rows"}))
    ['auc:  0.831235', 'loss: none (no rows)']
    """
    rows = []
    for name, value in found.items():
        note = found.notes.get(name, "")
        rows.append((name, shortened(metric_text(value), _LINE) + (f" ({note})" if note else "")))
    names = [f"{one_line(name)}: " for name, _ in rows]
    wide = max(map(width, names), default=0)
    return [padded(name, wide) + one_line(text) for name, (_, text) in zip(names, rows, strict=True)]


# As in `session.context`: what imports pyarrow is imported inside functions, after the first workers were started.


OnEnd = Callable[[str], None]


def _ignored(report: str) -> None:
    """The caller does not ask for a report."""


def read(
    plan: Plan,
    options: RunOptions,
    on_end: OnEnd = _ignored,
    *,
    marks: bool = False,
    shows_progress: bool = False,
    look: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the plan's output in order, in bounded memory; the workers end when the reader stops.

    ``on_end`` receives a report of a few lines at the end. ``marks``: columns that may hold nulls keep the
    mark that shows it. ``shows_progress``: also where the options do not ask for it. ``look``: somebody tries the
    plan out, so this process does the work where there are no GPUs for workers, and what cannot travel is warned of.
    """
    if not (shows_progress or options.progress):
        options = replace(options, progress=False)
    return _stream(plan, options, on_end, marks=marks, look=look)


def count(plan: Plan, options: RunOptions, on_end: OnEnd = _ignored) -> int:
    """Count the plan's output rows without moving them."""
    tally, stream = _prepared(plan, options, "count")
    for _ in _reported(tally, stream, plan, on_end):
        pass
    return tally.ledger.written


def evaluate(plan: Plan, options: RunOptions, on_end: OnEnd = _ignored) -> Metrics:
    """Run the plan for its metrics; its rows are dropped."""

    tally, stream = _prepared(plan, options, "count", metrics=True)
    for _ in _reported(tally, stream, plan, on_end):
        pass
    return collected(plan.metrics, tally.totals())


def _stream(
    plan: Plan,
    options: RunOptions,
    on_end: OnEnd,
    *,
    marks: bool,
    look: bool,
) -> Iterator[pa.RecordBatch]:
    from headrace.core.arrow.forms import without_null_marks

    tally, stream = _prepared(plan, options, "blocks", look=look)
    for batch in _reported(tally, stream, plan, on_end):
        yield batch if marks else without_null_marks(batch)


def _reported(
    tally: InMemoryCommitter, stream: Iterator[pa.RecordBatch], plan: Plan, on_end: OnEnd
) -> Iterator[pa.RecordBatch]:
    """Pass the rows of a run on, and report at its end how it was."""
    from headrace.observers.summary import reading

    started = time.monotonic()
    ended = False
    try:
        yield from stream
        ended = True
    finally:
        steps = plan.steps if len(plan.steps) == len(tally.ledger.steps) else plan.without_metrics().steps
        labels = [step.label() for step in steps]
        on_end(reading(tally.ledger, tally.timings, time.monotonic() - started, labels, ended=ended))


def _prepared(
    plan: Plan, options: RunOptions, kind: str, *, metrics: bool = False, look: bool = False
) -> tuple[InMemoryCommitter, Iterator[pa.RecordBatch]]:
    """Check a plan and partition its input; nothing is started before the first row is asked for."""
    from headrace.driver.ports import InMemoryCommitter

    plan, release = prepared_for_reading(plan, options)
    if not metrics:
        with data_hidden(hide=not options.show_data):
            compiler.columns_at(plan.steps, plan.source.schema())
        plan = plan.without_metrics()
    tally = InMemoryCommitter(plan.metrics)
    inline = replace(options, engine="inline")
    travels = not options.traits.in_process
    if kind == "look" or (look and not options.traits.is_cluster and lacks_gpus(plan.steps)):
        options = inline
    execution = _planned(plan, options)
    shards, declared = execution.shards, any(map(partitioning.is_declared, execution.stages))
    warn_of_inline(execution)
    if not shards or (len(shards) == 1 and not declared and options.batch_timeout is None):
        options = inline  # one worker suffices, and this process is at hand
    if look and travels and options.traits.in_process:
        warn_of_unpicklable(plan.steps)
    return tally, _run(plan, options, kind, shards, tally, release)


def _run(
    plan: Plan,
    options: RunOptions,
    kind: str,
    shards: list[Shard],
    tally: InMemoryCommitter,
    release: Callable[[], object],
) -> Iterator[pa.RecordBatch]:
    started = time.monotonic()
    if kind == "look":
        options = replace(options, progress=False)
    with (
        contextlib.ExitStack() as ended,
        progress_shown(options) as progress,
        RunContext.open(plan, options) as context,
    ):
        ended.callback(release)
        if progress is None:
            yield from context.compose(plan, kind, shards, tally).stream()
        else:
            events = EventBus([progress])
            run = context.compose(plan, kind, shards, tally, events=events)
            _announce(plan, context, shards, events, started)
            tally.on_committed = lambda record: events.on_event(committed(record))
            yield from run.stream()
    if tally.ledger.rejected and kind != "look":
        _warn_of_rejects(tally)


def _announce(plan: Plan, context: RunContext, shards: list[Shard], events: EventBus, started: float) -> None:
    """Send the events that begin a run whose rows are read."""
    from headrace.core.events import RunStarted
    from headrace.observers.pace import LAST_SHARDS

    execution = context.execution
    events.on_event(describe_reading(plan, execution, elapsed=time.monotonic() - started))
    rows = rows_expected(plan, shards)
    sizes = sizes_of(plan, shards, rows)
    last = tuple(sizes.get(shard.index, shard.rows) for shard in shards[-LAST_SHARDS:])
    events.on_event(
        RunStarted(
            "",
            "",
            len(shards),
            0,
            0,
            rows,
            execution.workers,
            last_shards=last,
            size=sum(sizes.values()),
            sizes=sizes,
            likely=likely_rows(plan, rows),
        )
    )


def committed(record: CommitRecord) -> ShardCommitted:
    """Return the event that a shard is committed."""
    from headrace.core.events import ShardCommitted

    size = sum(file.size for file in record.files)
    return ShardCommitted(record.shard, record.attempt, record.ledger, size, record.timings, record.faults)


def rows_expected(plan: Plan, shards: Sequence[Shard]) -> int:
    """Return how many rows will be read; -1 if only reading would tell."""
    each = [shard.rows for shard in shards]
    if min(each, default=0) < 0:
        return -1
    rows = sum(each)
    known = _rows_after(plan, [split for shard in shards for split in shard.splits])
    return min(rows, rows if known is None else known, _until_the_limit(plan, rows) or rows)


def _until_the_limit(plan: Plan, rows: int) -> int:
    """Return how many of so many rows are read until the limits have theirs; 0 if only running it would tell."""
    steps = plan.without_metrics().steps
    last = max((number for number, step in enumerate(steps, 1) if step.row_limit is not None), default=0)
    for step in steps[:last]:
        if step.row_limit is not None:
            rows = min(rows, step.row_limit)
        elif isinstance(step, OnBranch) or step.rows_after(rows) != rows:
            return 0
    return rows


def sizes_of(plan: Plan, shards: Sequence[Shard], expected: int) -> dict[int, int]:
    """Return the bytes of each shard, if they tell how many rows are ``expected``, and nothing better does."""
    tells = expected < 0 and not any(step.row_limit is not None for step in plan.steps)
    sizes = {shard.index: shard.size for shard in shards} if tells else {}
    return sizes if any(sizes.values()) else {}


def likely_rows(plan: Plan, expected: int) -> int:
    """Return about how many rows will be read where only reading tells, so that ``expected`` is -1; 0 for unknown."""
    return _until_the_limit(plan, plan.source.likely_rows()) if expected < 0 else 0


def _warn_of_rejects(tally: InMemoryCommitter) -> None:
    from headrace.driver.policies.shards import format_faults

    warn(
        f"{tally.ledger.rejected:,} of {tally.ledger.read:,} rows failed and are left out: "
        f"{format_faults(tally.faults)}. If the output is written, such rows are in OUT/_rejected."
    )


def _planned(plan: Plan, options: RunOptions) -> ExecutionPlan:
    """Lay a plan out, with its input partitioned."""
    with data_hidden(hide=not options.show_data):
        compiler.columns_at(plan.steps, plan.source.schema())
        execution = ExecutionPlan(plan, options, writes=False)
        _ = execution.partitioning
        return execution


def head(plan: Plan, rows: int, options: RunOptions, *, told: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the first ``rows`` rows, made in this process; reads no further than needed.

    ``told``: with a warning, at the end, of rows before them that failed.
    """
    from headrace.core.arrow.forms import without_null_marks
    from headrace.plan.steps.selection import Limit

    tally, stream = _prepared(plan.then(Limit(rows)), replace(options, shard_rows=1), "look", look=True)
    yield from map(without_null_marks, stream)
    if told and tally.ledger.rejected:
        _warn_of_rejects(tally)


def static_schema(plan: Plan) -> pa.Schema:
    """Return the output schema without reading a row; the source's where only rows show it."""
    from headrace.core.arrow.forms import unmarked
    from headrace.worker.steps.base import schema_by_trying

    schema = plan.source.schema()
    return unmarked(schema_by_trying(plan.steps, schema) or schema)


def known_schema(plan: Plan) -> pa.Schema | None:
    """Return the output schema if no function of the user's is needed for it."""
    from headrace.worker.steps.base import schema_by_trying

    schema = plan.source.known_schema()
    if schema is None or any(step.functions() for step in plan.steps):
        return None
    return schema_by_trying(plan.steps, schema)


def known_count(plan: Plan, options: RunOptions) -> int | None:
    """Return the number of output rows if metadata has it: only ``limit`` changes it, and no row may fail."""
    compiler.columns_at(plan.steps, plan.source.known_schema())
    splits = plan.source.splits()
    if any(split.rows < 0 for split in splits):
        return None
    if options.on_error != "raise" and (plan.steps or plan.source.unprepared):
        return None
    return _rows_after(plan, splits)


def _rows_after(plan: Plan, splits: Sequence[Split]) -> int | None:
    """Return how many rows of these splits come out, if that is known; the source is not asked again."""
    steps = plan.without_metrics().steps
    own = [step for step in steps if isinstance(step, OnBranch)]
    rows = [sum(split.length for split in splits)]
    if own:
        rows = [0] * len(paths_of(steps))
        for split in splits:
            rows[plan.source.dataset_of(split)] += split.length
    left: int | None = 0
    for number, each in enumerate(rows):
        after = _passed((step.step for step in own if goes_through(step, number)), each)
        left = None if left is None or after is None else left + after
    return None if left is None else _passed((step for step in steps if not isinstance(step, OnBranch)), left)


def _passed(steps: Iterable[Step], rows: int) -> int | None:
    """Return how many of so many rows come out of some steps, if that is known."""
    left: int | None = rows
    for step in steps:
        left = None if left is None else step.rows_after(left)
    return left


_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # what was tried, by its id


def warn_of_unpicklable(steps: Sequence[Step]) -> None:
    """Warn of the first function that a run with workers would refuse, with what in it cannot be pickled.

    Each function is tried once, and no more than its first MiB: whoever looks at some rows does not wait for it.
    """
    untried = [step for step in steps if not all(_tried(each.function) for each in step.functions())]
    if not untried:
        return
    from headrace.engines.out_of_band_pickle import try_pickling

    told = refusal(untried, try_pickling)
    if told:
        warn(f"This works here, in one process. It will not work in a run with worker processes: {told}")


def _tried(function: Function) -> bool:
    """Say whether a function was tried before, and remember it."""
    if function.args or function.kwargs or function.init_args or function.init_kwargs:
        return False
    call = function.call
    if _known.get(id(call)) is call:
        return True
    try:
        _known[id(call)] = call
    except TypeError:  # what has slots, or is built in, may have no weak references
        return False
    return False
