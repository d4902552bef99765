"""Keeping the columns that metrics read, until the rows are written and counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.plan.steps.accumulate import Accumulate
from headrace.worker.calls import Caller
from headrace.worker.metrics import side_column_name
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, runs, selected


@runs(Accumulate)
class Accumulating(RunningStep[Accumulate]):
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

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch."""
        return batch


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
