"""Metrics in a worker: their columns are kept, travel with the rows, and are counted where rows are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.arrow.views import protected
from headrace.core.metric_states import guarded
from headrace.core.model_ports import Accumulator
from headrace.errors import StepError
from headrace.plan.steps.functions import Accumulate
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RowChoice, StepContext, runs, selected
from headrace.worker.user_code import Where

_MARK = "__headrace_beside__:"


def side_column_name(step: Accumulate, column: str) -> str:
    """Name a column as it was at ``step``."""
    return f"{step.number}:{column}"


def pack_side_columns(rows: Rows) -> Rows:
    """Return rows whose batch has the side columns as its last columns, for another process."""
    if rows.side_columns is None:
        return rows
    schema = rows.batch.schema
    for field in rows.side_columns.schema:
        schema = schema.append(field.with_name(_MARK + field.name))
    columns = [*rows.batch.columns, *rows.side_columns.columns]
    return Rows(pa.RecordBatch.from_arrays(columns, schema=schema), rows.spans)


def unpack_side_columns(rows: Rows) -> Rows:
    """Undo ``pack_side_columns``."""
    names = rows.batch.schema.names
    if not names or not names[-1].startswith(_MARK):
        return rows
    first = next(i for i, name in enumerate(names) if name.startswith(_MARK))
    side_columns = rows.batch.select(list(range(first, len(names))))
    return Rows(
        rows.batch.select(list(range(first))) if first else empty_columns(len(rows)),
        rows.spans,
        side_columns.rename_columns([name.removeprefix(_MARK) for name in names[first:]]),
    )


class MetricsCounter:
    """The metrics of one attempt. ``show_data``: values may be shown in messages."""

    def __init__(self, steps: Sequence[Accumulate], where: Where, *, show_data: bool = True) -> None:
        self._where = where
        self._show_data = show_data
        self._metrics: list[tuple[Accumulate, str, Accumulator]] = []
        self._tried = False
        for step in steps:
            for name, metric in step.metrics:
                with guarded(name, "", show_data=show_data):
                    self._metrics.append((step, name, metric.empty()))

    def update(self, rows: Rows) -> None:
        """Update the metrics with rows that are written."""
        for step, name, metric in self._metrics:
            batch = protected(_columns_of(step, metric, rows), "pyarrow", tried=self._tried)
            try:
                with guarded(name, "", show_data=self._show_data):
                    metric.update(batch)
            except StepError as error:  # looking up which rows these are may be slow: only now
                raise type(error)(f"{error} This was in {self._where(rows)}.") from error.__cause__
        self._tried = True

    def states(self) -> tuple[bytes, ...]:
        """Return the state of each metric."""
        states = []
        for _, name, metric in self._metrics:
            with guarded(name, "its state: ", show_data=self._show_data):
                states.append(metric.to_bytes())
        return tuple(states)


def _columns_of(step: Accumulate, metric: Accumulator, rows: Rows) -> pa.RecordBatch:
    """Return the columns that a metric reads, as they were at its step."""
    names = list(dict.fromkeys(metric.columns))
    if not names:
        return empty_columns(len(rows))
    side_columns = rows.side_columns
    if side_columns is None or side_columns.num_rows != len(rows):
        raise AssertionError("a step lost the columns that metrics read")
    return pa.RecordBatch.from_arrays(
        [side_columns.column(side_column_name(step, name)) for name in names], names=names
    )


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
