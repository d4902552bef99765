"""Choosing and renaming columns: nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from headrace.errors import unknown_column
from headrace.plan.steps.base import Step
from headrace.plan.steps.columns import DropColumns, RenameColumns, SelectColumns
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, runs

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


def selected(batch: pa.RecordBatch, columns: Sequence[str], label: str) -> pa.RecordBatch:
    """Return these columns of a batch; ``UnknownColumn`` says that ``label`` asks for one that is not there."""
    check(batch, columns, label)
    return batch.select(list(columns))


def check(batch: pa.RecordBatch, columns: Iterable[str], label: str) -> None:
    """Raise ``UnknownColumn`` if one of the columns that ``label`` asks for is not there."""
    names = batch.schema.names
    for name in columns:
        if name not in names:
            raise unknown_column(label, name, names)
