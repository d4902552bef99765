"""Columns that go along beside rows, unseen by later steps: their names, and how they travel in blocks."""

from __future__ import annotations

import pyarrow as pa

from millrace.core.batch import empty_columns
from millrace.plan.logical import Accumulate
from millrace.run.rows import Rows

_MARK = "__millrace_beside__:"


def beside_name(step: Accumulate, column: str) -> str:
    """Name a column as it was at ``step``."""
    return f"{step.number}:{column}"


def folded(rows: Rows) -> Rows:
    """Return rows whose batch has the columns beside it as its last, for the way to another process."""
    if rows.beside is None:
        return rows
    schema = rows.batch.schema
    for field in rows.beside.schema:
        schema = schema.append(field.with_name(_MARK + field.name))
    columns = [*rows.batch.columns, *rows.beside.columns]
    return Rows(pa.RecordBatch.from_arrays(columns, schema=schema), rows.spans)


def unfolded(rows: Rows) -> Rows:
    """Undo ``folded``."""
    names = rows.batch.schema.names
    if not names or not names[-1].startswith(_MARK):
        return rows
    first = next(i for i, name in enumerate(names) if name.startswith(_MARK))
    beside = rows.batch.select(list(range(first, len(names))))
    return Rows(
        rows.batch.select(list(range(first))) if first else empty_columns(len(rows)),
        rows.spans,
        beside.rename_columns([name.removeprefix(_MARK) for name in names[first:]]),
    )
