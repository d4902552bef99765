"""Bringing rows of one dataset of a union to the columns of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.arrow.forms import marked
from headrace.core.arrow.lossless import cast
from headrace.errors import SchemaMismatch
from headrace.plan.steps.union import Conform, OnBranch
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningDatasetStep, RunningStep, StepContext, runs


@runs(Conform)
class Conforming(RunningStep[Conform]):
    """Orders columns, casts them to the types that are known, and adds those that are lacking, as nulls."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Bring each batch to the columns of all."""
        if self.step.columns is None:
            return rows
        return (part.with_batch(self._conformed(part.batch, context.unread)) for part in rows)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the same."""
        return batch if self.step.columns is None else self._conformed(batch, frozenset())

    def _conformed(self, batch: pa.RecordBatch, unread: frozenset[str]) -> pa.RecordBatch:
        fields, columns = [], []
        for name, type_ in self.step.columns or ():
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


@runs(OnBranch)
class RunningForSome(RunningDatasetStep[OnBranch]):
    """Runs the step for the rows that go through it; others do not come here."""


def _cast(name: str, column: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return cast(column, type_)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"union: column {name!r} is {column.type} in one dataset, which is {type_} in the union, and a value "
            f"does not fit: {error}. Give it that type, or another name, in a step before the union."
        ) from None
