"""Calling a function with batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import nulled
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.values import from_result
from headrace.core.arrow.views import make_view
from headrace.core.work import Fault
from headrace.plan.steps.functions import MapBatches
from headrace.worker.batching import BatchCutter
from headrace.worker.calls import Caller
from headrace.worker.fast_road import FastRoad, map_window, suits
from headrace.worker.in_flight import InFlightWindow
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, is_plain, runs, selected
from headrace.worker.user_code import UserCode


@runs(MapBatches)
class MappingBatches(RunningStep[MapBatches]):
    """Replaces batches by what the function returns for them."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Call the function with batches of the size that the user asked for, or that is best for it."""
        chosen = "columns" if self.step.columns else ""
        user_code = context.user_code(self.step.label(), "a batch", chosen)
        return map_batches(
            rows,
            self.step,
            callers[0],
            user_code,
            context.eager,
            limited=context.limited,
        )

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call a plain function with no rows."""
        step = self.step
        if not is_plain(step.function):
            return super().on_no_rows(batch)
        if step.columns is not None:
            batch = selected(batch, step.columns, step.label())
        call = step.function.build().call
        view, _ = make_view(batch, step.batch_format, tried=False, writable=step.writable)
        return from_result(next(_results(call(view))))


def map_batches(
    rows: Iterator[Rows],
    step: MapBatches,
    caller: Caller,
    user_code: UserCode,
    eager: bool,
    *,
    limited: bool = False,
    opened: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[Rows]:
    """Replace each batch by those that the function returns for it, or for what ``opened`` makes of it.

    ``limited``: a later step needs no more than some rows. What it leaves unused must not depend on how many calls
    were made at a time.
    """

    def ready(part: Rows) -> tuple[Any, InputView]:
        batch = part.batch if opened is None else opened(part.batch)
        return make_view(batch, step.batch_format, tried=caller.has_run, writable=step.writable)

    cutter = BatchCutter(step.batch_size, step.batch_bytes, caller, eager)
    window = InFlightWindow(caller, user_code, ready, _batches, cutter.tuner)
    failed: list[Rows] = []  # rows that get nulls, once a result has shown the schema

    def careful(rows: Iterator[Rows]) -> Iterator[Rows]:
        for part, results in window.run(rows, cutter.cut, look=cutter.look):
            if isinstance(results, Fault):
                failed.extend([part] if user_code.nulls_failures else [])
                results = []
            else:
                user_code.count_output(len(part), sum(batch.num_rows for batch in results))
            at = 0
            for batch in results:
                caller.result_schema = batch.schema
                yield from _nulled(failed, caller)
                stop = at + batch.num_rows
                same = len(results) == 1 and stop == len(part)
                yield part.cut(at, stop).with_batch(batch) if same else part.with_unknown_origin(batch)
                at = stop
            if caller.result_schema is not None:
                yield from _nulled(failed, caller)

    rows = filter(len, _projected(rows, step))
    size = step.batch_size
    if size is None or eager or opened or step.batch_format != "numpy" or step.writable or not suits(caller):
        yield from careful(rows)
    else:
        road = FastRoad(caller, user_code)
        work = partial(map_window, size=size)
        for part in road.windows(rows, size):
            made = road.tried(part, work)
            if made is None:
                yield from road.careful(part, careful(iter((part,))))
                continue
            road.made(len(part), made.nbytes)
            caller.result_schema = made.schema
            yield from _nulled(failed, caller)
            yield from part.with_batch(made).pieces(size if limited else len(part))
    yield from failed


def _nulled(failed: list[Rows], caller: Caller) -> Iterator[Rows]:
    assert caller.result_schema is not None
    for part in failed:
        yield part.with_batch(nulled(part.batch, caller.result_schema))
    failed.clear()


def _batches(part: Rows, input_view: InputView, result: Any) -> list[pa.RecordBatch]:
    """Convert each batch before the next is made: a generator may fill one array again and again."""
    made = (batch for batch in _results(result) if type(batch) is not dict or batch)  # {}: no rows
    return [from_result(batch, input_view) for batch in made]


def _projected(rows: Iterator[Rows], step: MapBatches) -> Iterator[Rows]:
    columns, label = step.columns, step.label()
    if columns is None:
        return rows
    return (part.with_batch(selected(part.batch, columns, label)) for part in rows)


def _results(value: Any) -> Iterator[Any]:
    """A function may return one batch or yield several; what it yields counts only if it ends well."""
    return value if isinstance(value, Iterator) else iter([value])
