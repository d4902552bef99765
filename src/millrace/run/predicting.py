"""Models at work: each gets its inputs in batches of its own size; every other column is carried by reference.

A model's batches have nothing to do with the batches that pass: only inputs are cut and joined, and only
results are cut and joined back. So what is carried is never copied, whatever ``batch_size`` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.core.batch import concat, empty_columns, nulled
from millrace.core.handed import Handed
from millrace.core.results import flat, has_names
from millrace.core.values import ConversionError, a, from_columns, from_result
from millrace.core.views import lend
from millrace.core.work import Fault
from millrace.errors import ColumnExists, UnknownColumn, nearest
from millrace.plan.logical import Model, Predict, model_label
from millrace.run.calls import Caller
from millrace.run.cutting import Cut
from millrace.run.flight import Flight
from millrace.run.guard import Guard
from millrace.run.rows import Rows


@dataclass(frozen=True, slots=True)
class _Item:
    """Rows on their way through the models, and the columns that these have added."""

    rows: Rows
    added: dict[str, pa.Array] = field(default_factory=dict)

    def cut(self, start: int, stop: int) -> _Item:
        if start == 0 and stop == len(self.rows):
            return self
        added = {name: column.slice(start, stop - start) for name, column in self.added.items()}
        return _Item(self.rows.cut(start, stop), added)


def predict(
    rows: Iterator[Rows],
    step: Predict,
    callers: Sequence[Caller],
    guards: Sequence[Guard],
    *,
    eager: bool,
    unread: frozenset[str],
    empty: bool = False,
) -> Iterator[Rows]:
    """Send rows through the models of a step. ``unread``: columns that the plan knows but nobody reads.

    Models see batches without rows only if asked to (``empty``), for the columns that come out.
    """
    items: Iterator[_Item] = (_Item(part) for part in rows if len(part) or empty)
    for model, caller, guard in zip(step.models, callers, guards, strict=True):
        items = _through(items, step, model, caller, guard, eager)
    for item in items:
        yield item.rows.with_batch(_assembled(item, step, unread))


def _through(
    items: Iterator[_Item], step: Predict, model: Model, caller: Caller, guard: Guard, eager: bool
) -> Iterator[_Item]:
    waiting: deque[_Item] = deque()

    def inputs() -> Iterator[Rows]:
        for item in items:
            waiting.append(item)
            yield item.rows.alone(_inputs(item, model, model_label(step, model)))

    batch_format = getattr(caller.built.predictor, "batch_format", None) or model.batch_format

    def ready(part: Rows) -> tuple[Any, Handed]:
        formed = caller.built.predictor is None  # they make of it what they need
        return lend(part.batch, batch_format, tried=caller.tried, formed=formed)

    def made(part: Rows, handed: Handed, result: Any) -> pa.RecordBatch:
        return _columns(result, model, handed, len(part))

    def carried() -> float:
        """Return the bytes of a row that was read last: while inputs are gathered, all of it is held."""
        whole = waiting[-1].rows.batch
        return float(whole.nbytes / max(whole.num_rows, 1))

    results = _Results()
    cut = Cut(model.batch_size, model.batch_bytes, caller, eager)
    flight = Flight(caller, guard, ready, made, cut.tuner)
    for part, columns in flight.over(inputs(), partial(cut.over, beside=carried), look=cut.look):
        if isinstance(columns, Fault):
            results.miss(len(part))
        else:
            results.add(columns)
            caller.seen = columns.schema
        while waiting and results.rows >= len(waiting[0].rows):
            if guard.keeps and caller.seen is None:
                break  # until others tell what a result looks like
            yield from _joined(waiting.popleft(), results, step, model, caller, guard)
    while waiting:
        yield from _joined(waiting.popleft(), results, step, model, caller, guard)


def _joined(
    item: _Item, results: _Results, step: Predict, model: Model, caller: Caller, guard: Guard
) -> Iterator[_Item]:
    """Put a model's results beside the rows that they belong to; rows without one are left out, or get nulls."""
    at = 0
    for result in results.take(len(item.rows)):
        count = result if isinstance(result, int) else result.num_rows
        piece = item.cut(at, at + count)
        at += count
        if isinstance(result, int):
            if not guard.keeps:
                continue
            schema = caller.seen or pa.schema([(model.output, pa.null())])
            result = nulled(empty_columns(count), schema)
        new = dict(zip(result.schema.names, result.columns, strict=True))
        for name in new:
            taken = name in piece.added and "another model"
            if name in piece.rows.batch.schema.names and not step.replace and _keeps(step, name):
                taken = "the input"
            if taken:
                raise ColumnExists(_exists(step, model, name, taken))
        yield _Item(piece.rows, piece.added | new)


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
            columns.append(item.added[name])
            fields.append(pa.field(name, item.added[name].type))
        else:
            there = [*names, *item.added]
            raise UnknownColumn(
                f"{label} asks for column {name!r}, but the columns here are {', '.join(there) or 'none'}."
                f"{nearest(name, there)}"
            )
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


class _Results:
    """What a model has returned and nobody has taken yet, in row order; a number for rows that it failed on."""

    def __init__(self) -> None:
        self.rows = 0
        self._parts: deque[pa.RecordBatch | int] = deque()

    def add(self, batch: pa.RecordBatch) -> None:
        """Put the results for some more rows behind the others."""
        self._parts.append(batch)
        self.rows += batch.num_rows

    def miss(self, rows: int) -> None:
        """Go on without results for some rows."""
        self._parts.append(rows)
        self.rows += rows

    def take(self, count: int) -> Iterator[pa.RecordBatch | int]:
        """Yield the results for the next ``count`` rows: joined, as far as they have one schema."""
        if not count:  # the batch without rows that tells the columns
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


def _columns(result: Any, model: Model, handed: Handed, rows: int) -> pa.RecordBatch:
    """Turn what a model returned into named columns of as many rows as it got."""
    if isinstance(result, Mapping):
        result = {name: flat(values) for name, values in result.items()}
    if has_names(result) or result is None:
        made = from_result(result, handed)
        if model.prefixed:
            made = made.rename_columns([f"{model.output}_{name}" for name in made.schema.names])
    elif isinstance(result, tuple):
        raise ConversionError(
            "it returned a tuple; several results per row come as a dict that names them: "
            '`return {"label": labels, "score": scores}`'
        )
    elif isinstance(result, Iterator):
        raise ConversionError(
            f"it returned {a(result)}; a model returns the results for all rows of its batch at once, and "
            "map_batches is for functions that yield"
        )
    else:
        made = from_columns({model.output: flat(result)}, handed)
    if made.num_rows != rows:
        raise ConversionError(
            f"it returned {made.num_rows:,} rows for {rows:,}; a model gives one result per row, in order, and "
            "map_batches is for functions that change the number of rows"
        )
    return made


def _assembled(item: _Item, step: Predict, unread: frozenset[str]) -> pa.RecordBatch:
    """Put carried columns, untouched and in their order, before what the models added."""
    batch = item.rows.batch
    label = model_label(step, step.models[-1])
    if step.keep is not None:
        batch = batch.select(_kept(step.keep, batch.schema.names, unread, label))
    places = {name: at for at, name in enumerate(batch.schema.names) if name in item.added}
    for name, column in item.added.items():
        if name in places:  # which `replace` allows
            batch = batch.set_column(places[name], name, column)
        else:
            batch = batch.append_column(name, column)
    return batch


def _kept(keep: tuple[str, ...], names: Sequence[str], unread: frozenset[str], label: str) -> list[str]:
    for name in keep:
        if name not in names and name not in unread:
            raise UnknownColumn(
                f"{label} should keep column {name!r}, but the columns here are {', '.join(names) or 'none'}."
                f"{nearest(name, names)}"
            )
    return [name for name in names if name in keep]


def _keeps(step: Predict, name: str) -> bool:
    return step.keep is None or name in step.keep


def _exists(step: Predict, model: Model, name: str, whose: str) -> str:
    if whose == "another model":
        return (
            f"{model_label(step, model)} would add a column {name!r}, but {whose} has one of that name. Give one of "
            "the results another name: with output=, or by its key where models come in a dict."
        )
    named = (
        f"put the model in a dict, which prefixes its results ({{'x': model}} gives 'x_{name}')"
        if name != model.output and not model.prefixed
        else "give the result another name with output="
    )
    return (
        f"{model_label(step, model)} would add a column {name!r}, but {whose} has one of that name. To keep both, "
        f"{named}; or leave the other out with keep=, or say replace=True."
    )
