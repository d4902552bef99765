"""A column with the path of the file that a row is from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

# ``read_parquet`` asks for the name alone, before the first worker starts: Arrow is imported where it is used.

PATH = "path"


def schema_with_path(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the column ``path`` at its end; a file may have none of that name."""
    if PATH in schema.names:
        raise SchemaMismatch(
            f"include_paths=True adds a column {PATH!r}, and the files have one of that name. Leave that column out "
            "with columns=[…], or read without include_paths."
        )
    import pyarrow as pa

    return schema.append(pa.field(PATH, pa.string()))


def with_path(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str] | None, path: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one file with its path in each row, where ``columns`` (None: all) has it."""
    import pyarrow as pa

    from headrace.core.arrow.values import column_from

    known = column_from([path])
    for batch in batches:
        if columns is not None and PATH not in columns:
            yield batch
            continue
        if len(known) < batch.num_rows:
            known = column_from([path] * batch.num_rows)
        names = [*batch.schema.names, PATH] if columns is None else list(columns)
        own = {field.name: (field, batch.column(i)) for i, field in enumerate(batch.schema)}
        own[PATH] = pa.field(PATH, pa.string()), known.slice(0, batch.num_rows)
        yield pa.RecordBatch.from_arrays(
            [own[name][1] for name in names], schema=pa.schema([own[name][0] for name in names])
        )
