"""Steps of which no function takes part: they choose columns and rows, unite datasets, and keep what metrics read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import empty_columns, filtered
from headrace.core.arrow.forms import OBJECT, form_of, mark_of, marked
from headrace.core.arrow.lossless import cast
from headrace.core.key_digests import KeyFile, digests_of
from headrace.core.source_ports import shares
from headrace.errors import SchemaMismatch, StepError
from headrace.plan.expressions import fields_of
from headrace.plan.steps.base import Conform, Step
from headrace.plan.steps.functions import Accumulate
from headrace.plan.steps.selection import (
    DropColumns,
    Limit,
    RandomSample,
    RenameColumns,
    SelectColumns,
    Unseen,
    WithColumn,
)
from headrace.worker.calls import Caller
from headrace.worker.meter import side_column_name
from headrace.worker.rows import Rows
from headrace.worker.steps.base import (
    RowChoice,
    RunningStep,
    StepContext,
    check,
    runs,
    selected,
)
from headrace.worker.user_code import evaluate, evaluated

S = TypeVar("S", bound=Step)


class _ColumnStep(RunningStep[S]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Change the columns of each batch."""
        return (part.with_batch(self.changed(part.batch, context.unread)) for part in rows)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the same."""
        return self.changed(batch, frozenset())

    def changed(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the batch with other columns; those in ``unread`` were not read, though the plan has them."""
        raise NotImplementedError


@runs(SelectColumns)
class SelectingColumns(_ColumnStep[SelectColumns]):
    """Chooses columns."""

    def changed(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the columns."""
        return selected(batch, self.step.columns, self.step.label())


@runs(DropColumns)
class DroppingColumns(_ColumnStep[DropColumns]):
    """Leaves columns out."""

    def changed(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the others; those that were not read need not be there."""
        check(batch, (name for name in self.step.columns if name not in unread), self.step.label())
        return batch.select([name for name in batch.schema.names if name not in self.step.columns])


@runs(RenameColumns)
class RenamingColumns(_ColumnStep[RenameColumns]):
    """Renames columns."""

    def changed(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the columns by their new names."""
        check(batch, self.step.reads(), self.step.label())
        new = dict(self.step.names)
        return batch.rename_columns([new.get(name, name) for name in batch.schema.names])


# A column that an expression gives has no nulls if it begins like this.
_NEVER_NULL = ("coalesce(", "is_null(", "is_valid(", "true_unless_null(")


@runs(WithColumn)
class AddingColumn(RunningStep[WithColumn]):
    """Adds the column to each batch."""

    def __init__(self, step: WithColumn) -> None:
        super().__init__(step)
        # Of the last batch, and the forms of the columns that are read of it.
        self._schema: pa.Schema | None = None
        self._marks: list[str | None] = []

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Evaluate the expression for each batch; rows at which it fails are rejected, or get a null."""
        step, label = self.step, self.step.label()
        user_code = context.user_code(label, "a value")
        for part in rows:
            for piece, column in evaluated(part, step.expression, label, user_code, keep=True):
                yield piece.with_batch(self._added(piece.batch, column))

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the same: the expression tells its type."""
        return self._added(batch, evaluate(self.step.expression, self.step.label(), batch))

    def _added(self, batch: pa.RecordBatch, column: pa.Array) -> pa.RecordBatch:
        name = self.step.name
        at = batch.schema.get_field_index(name)
        field = pa.field(name, column.type)
        if not batch.num_columns:
            made = pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))
        elif at >= 0:
            self.step.check_columns(batch.schema.names)
            made = batch.set_column(at, field, column)
        else:
            made = batch.append_column(field, column)
        sure = str(self.step.expression).startswith(_NEVER_NULL)
        form = None if sure else self._form(batch.schema, column.type)
        return made if form is None else marked(made, {name: form})

    def _form(self, schema: pa.Schema, type_: pa.DataType) -> str | None:
        """Return the form of the new column: it may hold nulls if one of the columns that it is made of may."""
        if self._schema is None or not self._schema.equals(schema, check_metadata=True):
            read = fields_of(self.step.expression, schema) or ()
            self._schema = schema
            self._marks = [mark_of(schema.field(name)) for name in read if name in schema.names]
        return form_of(type_, wide=OBJECT in self._marks) if any(self._marks) else None


# ---------------------------------------------------------------- choosing rows


@runs(Limit)
class Limiting(RowChoice[Limit]):
    """Passes as many rows as the shard may give."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Pass rows, and end with the last one: no more is read."""
        budget, meter = context.budget, context.meter
        for part in rows:
            passed = min(budget, len(part))
            budget -= passed
            context.count_dropped(len(part) - passed)
            yield part.cut(0, passed)
            if budget == 0:
                meter.cut = max(meter.cut, context.number)
                return


def _chosen(part: Rows, mask: np.ndarray[Any, np.dtype[np.bool_]], context: StepContext) -> Rows:
    """Return the rows for which ``mask`` is true, and count the others as dropped."""
    kept = int(mask.sum())
    context.count_dropped(len(part) - kept)
    if kept == len(part):
        return part
    batch = filtered(part.batch, mask) if part.batch.num_columns else empty_columns(kept)
    return part.masked(batch, mask)


@runs(RandomSample)
class Sampling(RowChoice[RandomSample]):
    """Keeps some rows, by a hash of where they stand."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Keep the rows of the sample, and count the others as dropped."""
        return (_chosen(part, self._mask(part, context), context) for part in rows)

    def _mask(self, part: Rows, context: StepContext) -> np.ndarray[Any, np.dtype[np.bool_]]:
        masks = [np.empty(0, np.bool_)]
        for span in part.spans:
            if span.last is not None and span.count:
                raise StepError(
                    f"{self.step.label()} chooses rows by their position in the input, but a function before it "
                    f"changed the number of rows ({context.where(part)}), so they have no position. Put the sample "
                    "before that step."
                )
            found = shares(context.keys(span.split, span.numbers()), self._seed)
            masks.append((found >= self.step.low) & (found < self.step.high))
        return np.concatenate(masks)

    @property
    def _seed(self) -> int:
        """Another seed for each sample of a plan: the second takes its part of the first, not all of it."""
        return self.step.seed * 1_000_003 + self.step.number


@runs(Unseen)
class LeavingOutSeen(RowChoice[Unseen]):
    """Looks each row's key up in the sorted keys of earlier runs, which all workers map."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Yield the rows whose keys are new, and count the others as dropped."""
        folder = self.step.seen.folder
        if not folder:
            yield from rows
            return
        keys = KeyFile(Path(folder)).whole()
        for part in rows:
            yield _chosen(part, np.logical_not(keys.has(digests_of(part.batch, self.step.key))), context)


# ---------------------------------------------------------------- unions


@runs(Conform)
class Conforming(_ColumnStep[Conform]):
    """Orders columns, casts them to the types that are known, and adds those that are lacking, as nulls."""

    def changed(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Bring a batch to the columns of all, where they are known."""
        if self.step.columns is None:
            return batch
        fields, columns = [], []
        for name, type_ in self.step.columns:
            at = batch.schema.get_field_index(name)
            if at < 0 and name in unread:
                continue
            if at < 0:
                column = pa.nulls(batch.num_rows, type_)
                field = pa.field(name, column.type)
            else:
                field, column = batch.schema.field(at), batch.column(at)
                if type_ is not None and not field.type.equals(type_):
                    column, field = _cast(name, column, type_), pa.field(name, type_)
            fields.append(field)
            columns.append(column)
        if not fields:
            return empty_columns(batch.num_rows)
        made = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        return marked(made, dict(self.step.forms))


def _cast(name: str, column: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return cast(column, type_)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"union: column {name!r} is {column.type} in one dataset, which is {type_} in the union, and a value "
            f"does not fit: {error}. Give it that type, or another name, in a step before the union."
        ) from None


# ---------------------------------------------------------------- metrics


@runs(Accumulate)
class Accumulating(RowChoice[Accumulate]):
    """Copies the columns that the step's metrics read to the side columns, as they are here."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Add the side columns."""
        columns, label = self.step.columns, self.step.label()
        if not columns:
            return rows
        names = [side_column_name(self.step, name) for name in columns]
        read = _results if self.step.of_models else selected
        return (
            part.with_side_columns(read(part.batch, columns, label).rename_columns(names)) for part in rows
        )


def _results(batch: pa.RecordBatch, columns: Sequence[str], label: str) -> pa.RecordBatch:
    """Return a column for each of two models: its result, or its named results, those that both have."""
    names = batch.schema.names
    ends = [{name[len(each) + 1 :] for name in names if name.startswith(f"{each}_")} for each in columns]
    found = []
    for each, own in zip(columns, ends, strict=True):
        some = sorted(set.intersection(*ends) or own)
        if each in names or not some:
            found.append(selected(batch, [each], label).column(0))
        else:
            found.append(pa.StructArray.from_arrays([batch.column(f"{each}_{end}") for end in some], some))
    return pa.RecordBatch.from_arrays(found, list(columns))
