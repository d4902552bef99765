"""What rejected rows look like: the source's columns, and why a row is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.arrow.objects import TEXTS, without_objects
from headrace.core.arrow.plain import kind_of
from headrace.core.files import safe_files

ERROR_FIELDS = (
    pa.field("_error", pa.string()),
    pa.field("_error_type", pa.string()),
    pa.field("_step", pa.string()),
    pa.field("_file", pa.string()),
    pa.field("_row", pa.int64()),
    pa.field("_attempts", pa.int32()),
    pa.field("_place", pa.int64()),  # how many rows of its part stand before it; null if that is not known
)


_ROWS_PER_FILE = 1_000  # that are looked into
UNREAD = "read"  # the step of rows that the source could not read
COLUMNS = "columns"  # the file in a run's folder that has the source's schema, if no row was rejected


def rejected_schema(source: pa.Schema) -> pa.Schema:
    """Return the schema of rejected rows: the source's columns, all nullable, and those that tell why.

    Of Python objects there is the ``repr``: a file cannot hold them.
    """
    ours = {field.name for field in ERROR_FIELDS}
    source = without_objects(source, TEXTS)
    kept = [field.with_nullable(True) for field in source if field.name not in ours]
    return pa.schema([*kept, *ERROR_FIELDS])


def reason(why: Mapping[str, Any]) -> tuple[str, str]:
    """Return where a rejected row stood, and what was raised, in words.

    >>> reason({"_file": "a.csv", "_row": 1200, "_error_type": "ValueError", "_error": "no number"})
    ('a.csv, row 1,200', 'ValueError: no number')
    """
    row = why["_row"]
    where = str(why["_file"]) + (f", row {row:,}" if row is not None else "")
    return where, f"{why['_error_type']}: {why['_error']}"


def first_rows(path: Path) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
    """Yield the first rows of a file of rejected rows, each with its reason; none if the file is damaged, as `verify`
    reports that."""
    ours = [field.name for field in ERROR_FIELDS]
    try:
        with pa.BufferReader(safe_files.mapped(path)) as source:
            reader = pa.ipc.open_file(source)
            if not reader.num_record_batches:
                return
            batch = reader.get_batch(0).slice(0, _ROWS_PER_FILE)
        batch.validate(full=True)  # a wrong offset would be read beyond the file
        why = batch.select(ours).to_pylist()
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return
    own = batch.select([name for name in batch.schema.names if name not in ours])
    for i, each in enumerate(why):
        yield each, own.slice(i, 1)


def has_text_form(kind: pa.DataType) -> bool:
    """Say whether values of a type can be read back from how ``as_text`` writes them, so that people can edit them.

    >>> [has_text_form(kind) for kind in (pa.int8(), pa.timestamp("us", "UTC"), pa.list_(pa.int8()), pa.binary())]
    [True, True, False, False]
    """
    if pa.types.is_dictionary(kind):
        return has_text_form(kind.value_type)
    plain = pa.types.is_primitive(kind) and not (pa.types.is_duration(kind) or pa.types.is_interval(kind))
    return kind_of(kind) == "text" or pa.types.is_decimal(kind) or plain


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write the values of a column as text, nulls as nulls."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    return pc.cast(column, pa.string())
