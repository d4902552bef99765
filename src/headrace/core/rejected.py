"""What rejected rows look like: the source's columns, and why a row is there."""

from __future__ import annotations

import pyarrow as pa

from headrace.core.arrow.objects import TEXTS, without_objects

ERROR_FIELDS = (
    pa.field("_error", pa.string()),
    pa.field("_error_type", pa.string()),
    pa.field("_step", pa.string()),
    pa.field("_file", pa.string()),
    pa.field("_row", pa.int64()),
    pa.field("_attempts", pa.int32()),
)


COLUMNS = "columns"  # the file in a run's folder that has the source's schema, if no row was rejected


def rejected_schema(source: pa.Schema) -> pa.Schema:
    """Return the schema of rejected rows: the source's columns, all nullable, and those that tell why.

    Of Python objects there is the ``repr``: a file cannot hold them.
    """
    ours = {field.name for field in ERROR_FIELDS}
    source = without_objects(source, TEXTS)
    kept = [field.with_nullable(True) for field in source if field.name not in ours]
    return pa.schema([*kept, *ERROR_FIELDS])
