"""Steps at work: each is a generator of rows over the rows of the step before."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from millrace.core.batch import empty_array, nulled
from millrace.core.handed import Handed
from millrace.core.values import from_result
from millrace.core.views import lend
from millrace.core.work import Fault, Split
from millrace.errors import ArgumentError, BadReturn, ModelError, StepError, UnknownColumn, nearest
from millrace.plan.logical import (
    Accumulate,
    Built,
    Drop,
    Filter,
    FlatMap,
    Function,
    Limit,
    MapBatches,
    MapRows,
    Model,
    Predict,
    Rename,
    Select,
    Step,
    functions_of,
    in_flight_of,
    labels_of,
    model_label,
    step_label,
)
from millrace.plan.physical import Policy
from millrace.run.beside import beside_name
from millrace.run.calls import Caller, EventLoop, caller_of
from millrace.run.cutting import Cut
from millrace.run.failures import is_interrupt, name_of, words
from millrace.run.flight import Flight
from millrace.run.guard import Guard, Meter, Where
from millrace.run.interrupts import interrupts_noted
from millrace.run.rows import Rows, Span

_NO_CEILINGS: Mapping[str, int] = MappingProxyType({})


class Chain:
    """The steps of a plan, with the user's classes constructed, ready for any number of attempts."""

    def __init__(
        self,
        steps: Sequence[Step],
        where: Where,
        *,
        eager: bool = False,
        unread: Sequence[frozenset[str]] = (),
        preparing: Callable[[str], None] = lambda what: None,
        loaded: Callable[[float], None] = lambda seconds: None,
        policy: Policy = Policy(),  # noqa: B008 - frozen
    ) -> None:
        """``eager``: a batch whose size is ours to choose is never waited for; it is what was read.

        ``unread``: for each step, columns that are there by the plan, but were not read: nobody needs them.
        ``preparing`` hears which class or model is being made ready, and ``""`` when all are; ``loaded`` how many
        seconds that took.
        """
        self._steps = tuple(steps)
        self._eager = eager
        self._unread = tuple(unread) or (frozenset(),) * len(self._steps)
        self._where = where
        self._policy = policy
        self._preparing = preparing
        self._loaded = loaded
        self._callers: list[list[Caller]] | None = None
        self._loop = EventLoop()

    def load(self) -> None:
        """Construct the user's classes and load the models, once."""
        if self._callers is None:
            began = time.monotonic()
            self._callers = [
                [
                    caller_of(function, self._build(step, function), most, self._loop)
                    for function, most in zip(functions_of(step), in_flight_of(step), strict=True)
                ]
                for step in self._steps
            ]
            self._preparing("")
            self._loaded(time.monotonic() - began)

    def _build(self, step: Step, function: Function) -> Built:
        loads = function.predictor is not None
        if loads or isinstance(function.call, type):
            doing = "loading" if loads else "constructing"
            self._preparing(f"{doing} {function.name} for {step_label(step)}")
        try:
            return function.build(self._loop.run) if function.is_async else function.build()
        except (ModelError, ArgumentError):
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise StepError(
                f"{function.name} could not be {'loaded' if loads else 'constructed'} for {step_label(step)}: "
                f"{name_of(error)}: {words(error)}. No row was read by it."
            ) from error

    def squeeze(self) -> None:
        """Have half as many rows at a time from the next batch on; may be called from any thread."""
        for caller in chain.from_iterable(self._callers or ()):
            caller.squeezed = True

    def close(self) -> None:
        """Let models go of what they hold, and end all threads."""
        callers = [*chain.from_iterable(self._callers or ())]
        self._callers = None
        with contextlib.ExitStack() as stack:  # the last first, and all of them, whatever one says
            stack.callback(self._loop.close)
            for each in callers:
                stack.callback(each.close)

    def run(
        self,
        rows: Iterator[Rows],
        meter: Meter,
        budgets: Sequence[int],
        ceilings: Mapping[str, int] = _NO_CEILINGS,
    ) -> Iterator[Rows]:
        """Send ``rows`` through all steps. ``budgets`` says how many rows each ``limit`` lets pass.

        ``ceilings``: how many rows at a time fit into memory, as other workers found, by the labels of steps.
        """
        self.load()
        assert self._callers is not None
        self._lower(ceilings)
        left = list(budgets)
        for i, (step, callers) in enumerate(zip(self._steps, self._callers, strict=True)):
            rows = _entering(rows, meter, i)
            if isinstance(step, Limit):
                rows = _limit(rows, left.pop(0), meter, i)
            elif isinstance(step, Predict):
                from millrace.run.predicting import predict  # each plan imports the steps that it has

                guards = [self._guard_of_model(step, model, meter, i) for model in step.models]
                rows = predict(rows, step, callers, guards, eager=self._eager, unread=self._unread[i])
            elif isinstance(step, MapBatches):
                chosen = "columns" if step.columns else ""
                guard = self._guard(step_label(step), "a batch", meter, i, chosen)
                rows = _map_batches(rows, step, callers[0], guard, self._eager)
            elif isinstance(step, Accumulate):
                rows = _carried(rows, step)
            elif isinstance(step, (Select, Drop, Rename)):
                rows = _recolumned(rows, step, self._unread[i])
            else:
                rows = self._apply(step, callers, rows, meter, i)
            rows = _leaving(rows, meter, i)
        return rows

    def _lower(self, ceilings: Mapping[str, int]) -> None:
        if not ceilings or self._callers is None:
            return
        for step, callers in zip(self._steps, self._callers, strict=True):
            for label, caller in zip(labels_of(step), callers, strict=True):
                if label in ceilings:
                    caller.lower(ceilings[label])

    def _guard(self, label: str, noun: str, meter: Meter, step: int, chosen: str = "") -> Guard:
        return Guard(label, noun, self._where, meter, chosen, step=step, policy=self._policy)

    def _guard_of_model(self, step: Predict, model: Model, meter: Meter, number: int) -> Guard:
        chosen = "inputs" if model.inputs is not None else ""
        return self._guard(model_label(step, model), "one result per row", meter, number, chosen)

    def _apply(
        self, step: Step, callers: Sequence[Caller], rows: Iterator[Rows], meter: Meter, number: int
    ) -> Iterator[Rows]:
        from millrace.run.row_steps import filter_expression, filter_rows, flat_map, map_rows

        guard = self._guard(step_label(step), "a row", meter, number)
        if isinstance(step, Filter) and step.function is None:
            return filter_expression(rows, step, guard)
        if isinstance(step, MapRows):
            return map_rows(rows, callers[0], guard)
        if isinstance(step, FlatMap):
            return flat_map(rows, callers[0], guard)
        return filter_rows(rows, callers[0], guard)


def _carried(rows: Iterator[Rows], step: Accumulate) -> Iterator[Rows]:
    """Put the columns that the step's metrics read beside the rows, as they are here."""
    if not step.columns:
        return rows
    chosen, label = Select(step.columns), step_label(step)
    names = [beside_name(step, name) for name in step.columns]
    return (part.with_beside(recolumn(part.batch, chosen, label).rename_columns(names)) for part in rows)


def _recolumned(rows: Iterator[Rows], step: Select | Drop | Rename, unread: frozenset[str]) -> Iterator[Rows]:
    return (part.with_batch(recolumn(part.batch, step, unread=unread)) for part in rows)


def _entering(rows: Iterator[Rows], meter: Meter, step: int) -> Iterator[Rows]:
    count = meter.steps[step]
    for part in rows:
        count[0] += len(part)
        yield part


def _leaving(rows: Iterator[Rows], meter: Meter, step: int) -> Iterator[Rows]:
    count = meter.steps[step]
    for part in rows:
        count[1] += len(part)
        yield part


def _map_batches(
    rows: Iterator[Rows], step: MapBatches, caller: Caller, guard: Guard, eager: bool
) -> Iterator[Rows]:
    def ready(part: Rows) -> tuple[Any, Handed]:
        return lend(part.batch, step.batch_format, tried=caller.tried)

    cut = Cut(step.batch_size, step.batch_bytes, caller, eager)
    flight = Flight(caller, guard, ready, _batches, cut.tuner)
    failed: list[Rows] = []  # rows that are kept, and wait for others to tell what a result looks like
    for part, results in flight.over(filter(len, _projected(rows, step)), cut.over, look=cut.look):
        if isinstance(results, Fault):
            failed += [part] if guard.keeps else []
            results = []
        else:
            guard.gave(len(part), sum(batch.num_rows for batch in results))
        for batch in results:
            caller.seen = batch.schema
            yield from _nulled(failed, caller)
            same = len(results) == 1 and batch.num_rows == len(part)
            yield part.with_batch(batch) if same else part.blurred(batch)
        if caller.seen is not None:
            yield from _nulled(failed, caller)
    yield from failed


def _nulled(failed: list[Rows], caller: Caller) -> Iterator[Rows]:
    assert caller.seen is not None
    for part in failed:
        yield part.with_batch(nulled(part.batch, caller.seen))
    failed.clear()


def _batches(part: Rows, handed: Handed, result: Any) -> list[pa.RecordBatch]:
    """Convert each batch before the next is made: a generator may fill one array again and again."""
    return [handed.marked(from_result(batch, handed)) for batch in _results(result)]


def _projected(rows: Iterator[Rows], step: MapBatches) -> Iterator[Rows]:
    if step.columns is None:
        return rows
    chosen = Select(step.columns)
    return (part.with_batch(recolumn(part.batch, chosen, step_label(step))) for part in rows)


def _results(value: Any) -> Iterator[Any]:
    """A function may return one batch or yield several; what it yields counts only if it ends well."""
    return value if isinstance(value, Iterator) else iter([value])


def recolumn(
    batch: pa.RecordBatch, step: Select | Drop | Rename, label: str = "", unread: frozenset[str] = frozenset()
) -> pa.RecordBatch:
    """Choose, leave out or rename columns; nothing is copied. Columns that were not read may be left out, too."""
    names = batch.schema.names
    for name in _asked(step):
        if name not in names and not (isinstance(step, Drop) and name in unread):
            raise UnknownColumn(
                f"{label or step_label(step)} asks for column {name!r}, but the columns here are "
                f"{', '.join(names) or 'none'}.{nearest(name, names)}"
            )
    if isinstance(step, Select):
        return batch.select(list(step.columns))
    if isinstance(step, Drop):
        return batch.select([name for name in names if name not in step.columns])
    new = dict(step.names)
    return batch.rename_columns([new.get(name, name) for name in names])


def _limit(rows: Iterator[Rows], budget: int, meter: Meter, step: int) -> Iterator[Rows]:
    for part in rows:
        passed = min(budget, len(part))
        budget -= passed
        meter.steps[step][3] += len(part) - passed
        yield part.cut(0, passed)
        if budget == 0:
            meter.cut = max(meter.cut, step)
            return


def _asked(step: Select | Drop | Rename) -> Sequence[str]:
    return [old for old, _ in step.names] if isinstance(step, Rename) else step.columns


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    return pa.RecordBatch.from_arrays([empty_array(field.type) for field in schema], schema=schema)


def schema_by_trying(steps: Sequence[Step], schema: pa.Schema) -> pa.Schema | None:
    """Send a batch of no rows through the steps; None if a function cannot do without rows.

    This is the driver's process, where only somebody's signal is an interrupt: functions may raise what they like.
    """
    batch = empty_batch(schema)
    with interrupts_noted() as noted:
        for step in steps:
            try:
                batch = _tried(step, batch)
            except BaseException as error:
                if is_interrupt(error) and (noted or type(error) is not KeyboardInterrupt):
                    raise
                return None
    return batch.schema


def _tried(step: Step, batch: pa.RecordBatch) -> pa.RecordBatch:
    if isinstance(step, (Select, Drop, Rename)):
        return recolumn(batch, step)
    if isinstance(step, (Filter, Limit, Accumulate)):
        return batch
    if isinstance(step, MapBatches) and _is_plain(step.function):
        if step.columns is not None:
            batch = recolumn(batch, Select(step.columns))
        call = step.function.build().call
        view, _ = lend(batch, step.batch_format, tried=False)
        return from_result(next(_results(call(view))))
    if isinstance(step, Predict) and all(_is_plain(model.function) for model in step.models):
        from millrace.run.predicting import predict

        split = Split(0, 0, 0)
        guards = [Guard("", "", lambda rows: "", Meter(1)) for _ in step.models]
        callers = [Caller(model.function.build()) for model in step.models]
        rows = iter([Rows(batch, (Span(split, 0, 0),))])
        return next(predict(rows, step, callers, guards, eager=True, unread=frozenset(), empty=True)).batch
    raise BadReturn("only rows would tell")


def _is_plain(function: Function) -> bool:
    return function.predictor is None and not isinstance(function.call, type) and not function.is_async
