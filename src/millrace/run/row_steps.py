"""Steps whose function sees one row, and the filter that is an Arrow expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.batch import one_array, rows_of, to_numpy
from millrace.core.values import ConversionError, a, column_from, from_rows
from millrace.errors import StepError, UnknownColumn, nearest
from millrace.plan.logical import Filter, step_label
from millrace.run.batching import ROW_STEP_ROWS
from millrace.run.guard import Guard, Meter
from millrace.run.rows import Rows

Call = Callable[[Any], Any]


def map_rows(rows: Iterator[Rows], call: Call, guard: Guard) -> Iterator[Rows]:
    """Replace each row by what ``call`` returns for it."""
    for part in _small(rows):
        with guard.over(part):
            batch = _batch(guard, [_row(call(row)) for row in _each(part, guard)])
        yield part.with_batch(batch)


def flat_map(rows: Iterator[Rows], call: Call, guard: Guard) -> Iterator[Rows]:
    """Replace each row by the rows that ``call`` returns for it."""
    for part in _small(rows):
        made: list[Mapping[str, Any]] = []
        counts = []
        with guard.over(part):
            for row in _each(part, guard):
                before = len(made)
                made.extend(_row(item) for item in _items(call(row)))
                counts.append(len(made) - before)
            batch = _batch(guard, made) if made else None
        if batch is not None:
            yield part.spread(batch, counts)


def filter_rows(rows: Iterator[Rows], call: Call, guard: Guard) -> Iterator[Rows]:
    """Keep the rows for which ``call`` is true."""
    for part in _small(rows):
        with guard.over(part):
            mask = np.fromiter((bool(call(row)) for row in _each(part, guard)), np.bool_, len(part))
        yield part.keep(part.batch.filter(column_from(mask)), mask)


def _small(rows: Iterator[Rows]) -> Iterator[Rows]:
    """Cut big batches: rows as Python objects need many times the memory."""
    for part in rows:
        for at in range(0, len(part), ROW_STEP_ROWS):
            yield part.cut(at, min(at + ROW_STEP_ROWS, len(part)))


def _each(part: Rows, guard: Guard) -> Iterator[dict[str, Any]]:
    for guard.row, row in enumerate(rows_of(part.batch)):
        yield row


def _batch(guard: Guard, rows: list[Mapping[str, Any]]) -> pa.RecordBatch:
    guard.row = None  # from here on, no single row is to blame
    return from_rows(rows)


def _row(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        missing = " (is a `return` missing?)" if value is None else ""
        raise ConversionError(f"a row is a dict, but it returned {a(value)}{missing}")
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConversionError(f"flat_map takes a list of rows, but it returned {a(value)}")
    return value


def filter_expression(rows: Iterator[Rows], step: Filter, meter: Meter) -> Iterator[Rows]:
    """Keep the rows for which the step's Arrow expression is true."""
    for part in rows:
        with meter.timing("steps"):
            mask = _evaluate(step, part.batch)
            batch = part.batch.filter(mask)
        kept = to_numpy(mask.fill_null(False)) if mask.null_count else to_numpy(mask)
        yield part.keep(batch, kept)


def _evaluate(step: Filter, batch: pa.RecordBatch) -> pa.Array:
    # `Table.filter` would import pyarrow.dataset, and that pandas.
    from pyarrow._acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    source = Declaration("table_source", TableSourceNodeOptions(pa.Table.from_batches([batch])))
    mask = Declaration("project", ProjectNodeOptions([step.expression], ["mask"]), [source])
    try:
        column = one_array(mask.to_table(use_threads=False).column(0))
    except (pa.ArrowException, KeyError, ValueError) as error:
        unknown = re.search(r"No match for FieldRef\.Name\((.*?)\) in", str(error))
        if unknown:
            names = batch.schema.names
            raise UnknownColumn(
                f"{step_label(step)} asks for column {unknown[1]!r}, but the columns here are "
                f"{', '.join(names) or 'none'}.{nearest(unknown[1], names)}"
            ) from None
        raise StepError(f"{step_label(step)} cannot be evaluated on these columns: {error}") from error
    if not pa.types.is_boolean(column.type):
        raise StepError(
            f"{step_label(step)} gives {column.type}; the expression of a filter is true or false."
        )
    return column
