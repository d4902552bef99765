"""Choosing and renaming columns: nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from headrace.core.arrow.forms import OBJECT, form_of, mark_of, marked
from headrace.plan.expressions import fields_of
from headrace.plan.steps.base import Step
from headrace.plan.steps.columns import DropColumns, RenameColumns, SelectColumns, WithColumn
from headrace.worker.calls import Caller
from headrace.worker.expressions import evaluate, evaluated
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, check, runs, selected

S = TypeVar("S", bound=Step)


class _ColumnStep(RunningStep[S]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Choose or rename the columns of each batch."""
        return (part.with_batch(self.selected(part.batch, context.unread)) for part in rows)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the same."""
        return self.selected(batch, frozenset())

    def selected(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the batch with other columns."""
        raise NotImplementedError


@runs(SelectColumns)
class SelectingColumns(_ColumnStep[SelectColumns]):
    """Chooses columns."""

    def selected(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the columns."""
        return selected(batch, self.step.columns, self.step.label())


@runs(DropColumns)
class DroppingColumns(_ColumnStep[DropColumns]):
    """Leaves columns out."""

    def selected(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the others; those that were not read need not be there."""
        check(batch, (name for name in self.step.columns if name not in unread), self.step.label())
        return batch.select([name for name in batch.schema.names if name not in self.step.columns])


@runs(RenameColumns)
class RenamingColumns(_ColumnStep[RenameColumns]):
    """Renames columns."""

    def selected(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        """Return the columns by their new names."""
        check(batch, self.step.reads(), self.step.label())
        new = dict(self.step.names)
        return batch.rename_columns([new.get(name, name) for name in batch.schema.names])


# ---------------------------------------------------------------- Adding a column that an Arrow expression gives


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
