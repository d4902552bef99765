"""Models at work: each gets its inputs in batches of its own size; every other column is carried by reference.

A model's batches have nothing to do with the batches that pass: only inputs are cut and joined, and only
results are cut and joined back. So what is carried is never copied, whatever ``batch_size`` says.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import concat, empty_columns, nulled
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.model_columns import flat, has_names, is_scalar
from headrace.core.arrow.objects import bytes_of
from headrace.core.arrow.values import ConversionError, a, from_columns, from_result
from headrace.core.arrow.views import make_view
from headrace.core.human import plural
from headrace.core.work import Fault, Split
from headrace.errors import ColumnExists, StepError, unknown_column
from headrace.plan.steps.predict import Model, Predict, Prompt, WithComputed
from headrace.worker.batching import BatchCutter
from headrace.worker.calls import Caller
from headrace.worker.in_flight import InFlightWindow
from headrace.worker.meter import Meter
from headrace.worker.rows import Rows, RowSpan
from headrace.worker.steps.base import RunningStep, StepContext, is_plain, runs
from headrace.worker.user_code import UserCode


@runs(Predict)
class Predicting(RunningStep[Predict]):
    """Adds the results of models to rows."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Send rows through the models, one after the other."""
        user_codes = [
            context.user_code(
                self.step.label_of(model),
                "one result per row",
                "inputs" if model.inputs is not None else "",
            )
            for model in self.step.models
        ]
        place = f"{context.meter.shard}.{context.number}"
        return predict(
            rows, self.step, callers, user_codes, eager=context.eager, unread=context.unread, place=place
        )

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call plain functions with no rows."""
        functions = [model.function for model in self.step.models]
        if not all(map(is_plain, functions)):
            return super().on_no_rows(batch)
        user_codes = [UserCode("", "", lambda rows: "", Meter(1)) for _ in functions]
        callers = [Caller(function.build()) for function in functions]
        rows = iter([Rows(batch, (RowSpan(Split(0, 0, 0), 0, 0),))])
        made = predict(rows, self.step, callers, user_codes, eager=True, unread=frozenset(), empty=True)
        try:
            return next(made).batch
        except StepError as error:  # there is no row to name
            raise (error.__cause__ or error) from None


@runs(Prompt)
class Prompting(Predicting):
    """The same for a language model, which says without being asked what it adds."""

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the columns of the answers."""
        added: dict[str, tuple[pa.Field, pa.Array]] = {}
        for model in self.step.models:
            told: Any = model.function.call
            added |= {each.name: (each, pa.array([], each.type)) for each in told.result}
        item = _Item(Rows(batch, (RowSpan(Split(0, 0, 0), 0, 0),)), added)
        return _assembled(item, self.step, frozenset())


@dataclass(frozen=True, slots=True)
class _Item:
    """Rows between two models, and the columns that models have added so far."""

    rows: Rows
    added: dict[str, tuple[pa.Field, pa.Array]] = field(default_factory=dict)

    def cut(self, start: int, stop: int) -> _Item:
        if start == 0 and stop == len(self.rows):
            return self
        added = {
            name: (kind, column.slice(start, stop - start)) for name, (kind, column) in self.added.items()
        }
        return _Item(self.rows.cut(start, stop), added)


def predict(
    rows: Iterator[Rows],
    step: Predict,
    callers: Sequence[Caller],
    user_codes: Sequence[UserCode],
    *,
    eager: bool,
    unread: frozenset[str],
    empty: bool = False,
    place: str = "",
) -> Iterator[Rows]:
    """Send rows through the models of a step. ``unread``: columns that the plan knows but nobody reads.

    Models see batches without rows only if asked to (``empty``), for the columns that come out. ``place`` names the
    shard and the step.
    """
    items: Iterator[_Item] = (_Item(part) for part in rows if len(part) or empty)
    for model, caller, user_code in zip(step.models, callers, user_codes, strict=True):
        items = _ModelAtWork(step, model, caller, user_code, place).run(items, eager=eager)
    for item in items:
        yield item.rows.with_batch(_assembled(item, step, unread))


class _ModelAtWork:
    """One model of a step: what it is given, what becomes of its results, and the rows that they are for."""

    def __init__(self, step: Predict, model: Model, caller: Caller, user_code: UserCode, place: str) -> None:
        self._step = step
        self._model = model
        self._caller = caller
        self._user_code = user_code
        self._batch_format = caller.built.parts.batch_format or model.batch_format
        self._names_column = caller.built.parts.names_column
        self._place, self._rows = place, itertools.count()
        self._waiting: deque[_Item] = deque()
        self._results = _Results()

    def run(self, items: Iterator[_Item], *, eager: bool) -> Iterator[_Item]:
        """Send items through the model, in its own batches; yields each as soon as all its rows have results."""
        model, caller, waiting, results = self._model, self._caller, self._waiting, self._results
        size = None if eager and isinstance(self._step, Prompt) else model.batch_size  # no more than is shown
        cutter = BatchCutter(size, model.batch_bytes, caller, eager)
        window = InFlightWindow(caller, self._user_code, self._view, self._columns, cutter.tuner)
        cut = partial(cutter.cut, row_bytes=self._carried)
        for part, columns in window.run(self._inputs(items), cut, look=cutter.look):
            if isinstance(columns, Fault):
                results.add_failed(len(part))
            else:
                results.add(columns)
                caller.result_schema = columns.schema
            while waiting and results.rows >= len(waiting[0].rows):
                if self._user_code.nulls_failures and caller.result_schema is None:
                    break  # until a result has shown the schema
                yield from self._with_results(waiting.popleft())
        while waiting:
            yield from self._with_results(waiting.popleft())

    def _inputs(self, items: Iterator[_Item]) -> Iterator[Rows]:
        label = self._step.label_of(self._model)
        for item in items:
            self._waiting.append(item)
            rows = item.rows.without_side_columns(_inputs(item, self._model, label))
            if self._names_column is not None:
                numbers = itertools.islice(self._rows, len(rows))
                names = pa.array([f"{self._place}.{number}" for number in numbers], pa.string())
                rows = rows.with_side_columns(pa.RecordBatch.from_arrays([names], [self._names_column]))
            yield rows

    def _view(self, part: Rows) -> tuple[Any, InputView]:
        formed = self._caller.built.predictor is None  # they make of it what they need
        view, input_view = make_view(
            part.batch, self._batch_format, tried=self._caller.has_run, formed=formed
        )
        if part.side_columns is not None:
            view = view.append_column(self._names_column, part.side_columns.column(0))
        return view, input_view

    def _columns(self, part: Rows, input_view: InputView, result: Any) -> pa.RecordBatch:
        adds_one = isinstance(self._step, WithComputed)
        if adds_one and is_scalar(result):
            return _repeated(result, self._model, input_view, len(part))
        columns = _named_columns(result, self._model, input_view, len(part))
        if adds_one and columns.num_columns != 1:
            raise ConversionError(
                f"it returned {columns.num_columns} columns, and with_column adds one; predict adds several"
            )
        return columns

    def _carried(self) -> float:
        """Return the bytes of a row that was read last: while inputs are gathered, all of it is held."""
        whole = self._waiting[-1].rows.batch
        return float(bytes_of(whole) / max(whole.num_rows, 1))

    def _with_results(self, item: _Item) -> Iterator[_Item]:
        """Add the results to an item's rows; rows without one are left out, or get nulls."""
        at = 0
        for result in self._results.take(len(item.rows)):
            count = result if isinstance(result, int) else result.num_rows
            piece = item.cut(at, at + count)
            at += count
            if isinstance(result, int):
                if not self._user_code.nulls_failures:
                    continue
                schema = self._caller.result_schema or pa.schema([(self._model.output, pa.null())])
                result = nulled(empty_columns(count), schema)
            new = {
                each.name: (each, column) for each, column in zip(result.schema, result.columns, strict=True)
            }
            _check_free(new, piece, self._step, self._model)
            yield _Item(piece.rows, piece.added | new)


def _check_free(names: Iterable[str], item: _Item, step: Predict, model: Model) -> None:
    """Raise if a column of a result has the name of one that is there."""
    for name in names:
        taken = name in item.added and "another model"
        if name in item.rows.batch.schema.names and not step.replace and _keeps(step, name):
            taken = "the input"
        if taken:
            raise ColumnExists(_name_is_taken(step, model, name, taken))


def _inputs(item: _Item, model: Model, label: str) -> pa.RecordBatch:
    batch = item.rows.batch
    if model.inputs is None:
        return batch
    names = batch.schema.names
    columns, fields = [], []
    for name in model.inputs:
        if name in names:
            columns.append(batch.column(name))
            fields.append(batch.schema.field(name))
        elif name in item.added:
            added, column = item.added[name]
            columns.append(column)
            fields.append(added)
        else:
            raise unknown_column(label, name, [*names, *item.added])
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


class _Results:
    """Results of a model that are not attached to rows yet, in row order; a number stands for so many failed rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._parts: deque[pa.RecordBatch | int] = deque()

    def add(self, batch: pa.RecordBatch) -> None:
        """Put the results for some more rows behind the others."""
        self._parts.append(batch)
        self.rows += batch.num_rows

    def add_failed(self, rows: int) -> None:
        """Go on without results for some rows."""
        self._parts.append(rows)
        self.rows += rows

    def take(self, count: int) -> Iterator[pa.RecordBatch | int]:
        """Yield the results for the next ``count`` rows: joined, as far as they have one schema."""
        if not count:  # the batch without rows that shows the columns
            yield self._parts.popleft()
        self.rows -= count
        taken: list[pa.RecordBatch] = []
        while count:
            part = self._next(count)
            rows = part if isinstance(part, int) else part.num_rows
            count -= rows
            if taken and (isinstance(part, int) or taken[0].schema != part.schema):
                yield concat(taken)
                taken = []
            if isinstance(part, int):
                yield part
            else:
                taken.append(part)
        if taken:
            yield concat(taken)

    def _next(self, most: int) -> pa.RecordBatch | int:
        part = self._parts.popleft()
        rows = part if isinstance(part, int) else part.num_rows
        if rows <= most:
            return part
        if isinstance(part, int):
            self._parts.appendleft(rows - most)
            return most
        self._parts.appendleft(part.slice(most))
        return part.slice(0, most)


def _named_columns(result: Any, model: Model, input_view: InputView, rows: int) -> pa.RecordBatch:
    """Turn what a model returned into named columns of as many rows as it got."""
    if isinstance(result, Mapping):
        result = {name: flat(values) for name, values in result.items()}
    if has_names(result) or result is None:
        made = from_result(result, input_view)
        names = made.schema.names
        if not model.own_names:
            one = [model.output]
            made = made.rename_columns(
                one if len(names) == 1 else [f"{model.output}_{name}" for name in names]
            )
    elif isinstance(result, tuple):
        raise ConversionError(
            "it returned a tuple; several results per row are returned as a dict with names: `return "
            '{"label": labels, "score": scores}`'
        )
    elif isinstance(result, Iterator):
        raise ConversionError(
            f"it returned {a(result)}; a model returns the results for all rows of its batch at once. For a function "
            "that yields, use map_batches"
        )
    else:
        made = from_columns({model.output: flat(result)}, input_view)
    if made.num_rows != rows:
        raise ConversionError(
            f"it returned {plural(made.num_rows, 'row')} for {rows:,}; a model gives one result per row, in "
            "order. For a function that changes the number of rows, use map_batches"
        )
    return made


def _repeated(value: Any, model: Model, input_view: InputView, rows: int) -> pa.RecordBatch:
    """Give each row the one value that a function returned for all."""
    one = from_columns({model.output: [value.item() if hasattr(value, "item") else value]}, input_view)
    return one.take(pa.array(np.zeros(rows, np.int64)))


def _assembled(item: _Item, step: Predict, unread: frozenset[str]) -> pa.RecordBatch:
    """Put carried columns, untouched and in their order, before what the models added."""
    batch = item.rows.batch
    label = step.label_of(step.models[-1])
    if step.keep is not None:
        batch = batch.select(_kept(step.keep, batch.schema.names, unread, label))
    places = {name: at for at, name in enumerate(batch.schema.names) if name in item.added}
    for name, (added, column) in item.added.items():
        if name in places:  # which `replace` allows
            batch = batch.set_column(places[name], added, column)
        else:
            batch = batch.append_column(added, column)
    return batch


def _kept(keep: tuple[str, ...], names: Sequence[str], unread: frozenset[str], label: str) -> list[str]:
    for name in keep:
        if name not in names and name not in unread:
            raise unknown_column(label, name, names)
    return [name for name in names if name in keep]


def _keeps(step: Predict, name: str) -> bool:
    return step.keep is None or name in step.keep


def _name_is_taken(step: Predict, model: Model, name: str, whose: str) -> str:
    if whose == "another model":
        return (
            f"{step.label_of(model)} would add a column {name!r}, but {whose} has one of that name. Give one of "
            "the results another name: with output=, or by its key where models come in a dict."
        )
    named = (
        f"say output='x': it names a single result, and several get names such as 'x_{name}'"
        if model.own_names
        else "give the result another name with output="
    )
    return (
        f"{step.label_of(model)} would add a column {name!r}, but {whose} has one of that name. To keep both, "
        f"{named}; or leave the other out with keep=, or say replace=True."
    )
