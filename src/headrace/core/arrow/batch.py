"""Batches: cutting, joining, and on their way to another process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import pyarrow as pa

from headrace.core.arrow import forms
from headrace.core.arrow.objects import (
    OBJECTS,
    is_objects,
    object_column,
    object_indices,
    objects_of,
    with_own_objects,
)
from headrace.errors import JournalDamaged

_OBJECT_FIELD = {b"headrace.object": b"1"}


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the table as one batch, copying only columns of several chunks."""
    if table.num_columns == 0:
        return empty_columns(table.num_rows)
    columns = [one_array(column) for column in table.columns]
    schema = table.schema
    for i, column in enumerate(columns):
        if pa.types.is_dictionary(column.type) and column.type != schema.field(i).type:  # became wider
            schema = schema.set(i, schema.field(i).with_type(column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, copying only if it has several chunks."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return empty_array(column.type)
    if pa.types.is_dictionary(column.type):
        return _one_dictionary(column)
    if is_objects(column.type):
        return object_column(objects_of(column))
    return pa.concat_arrays(column.chunks)


def _one_dictionary(column: pa.ChunkedArray) -> pa.Array:
    try:
        return pa.concat_arrays(column.unify_dictionaries().chunks)
    except pa.ArrowInvalid:  # together they have more values than an index of this width can count
        wide = pa.dictionary(pa.int32(), column.type.value_type, column.type.ordered)
        return pa.concat_arrays(column.cast(wide).unify_dictionaries().chunks)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    return pa.RecordBatch.from_arrays([empty_array(field.type) for field in schema], schema=schema)


def empty_array(type_: pa.DataType) -> pa.Array:
    """Return a column of no rows."""
    return pa.nulls(0, type_)


def nulled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return as many rows of ``schema``: what ``batch`` has in columns of the same name and type, else nulls.

    >>> batch = pa.record_batch({"id": [1, 2], "x": ["a", "b"]})
    >>> nulled(batch, pa.schema([("id", pa.int64()), ("x", pa.float64())])).to_pylist()
    [{'id': 1, 'x': None}, {'id': 2, 'x': None}]
    """
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        same = at >= 0 and batch.schema.field(at).type.equals(field.type)
        columns.append(batch.column(at) if same else pa.nulls(batch.num_rows, field.type))
    if not columns:
        return empty_columns(batch.num_rows)
    return pa.RecordBatch.from_arrays(
        columns, schema=pa.schema([field.with_nullable(True) for field in schema])
    )


def empty_columns(rows: int) -> pa.RecordBatch:
    """Return a batch that has rows but no columns."""
    struct = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(struct)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of one schema, copying; a single one is handed back as it is."""
    if len(batches) == 1:
        return batches[0]
    if batches[0].num_columns == 0:
        return empty_columns(sum(batch.num_rows for batch in batches))
    return one_batch(pa.Table.from_batches(batches))


def to_ipc(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Encode batches as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return cast("bytes", out.getvalue().to_pybytes())


def from_ipc(data: bytes) -> list[pa.RecordBatch]:
    """Decode an Arrow IPC stream; the batches view ``data``."""
    return list(pa.ipc.open_stream(data))


def owned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy that shares no memory with ``batch``, and holds no more than its own rows."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return with_own_objects(pa.ipc.open_stream(out.getvalue()).read_next_batch())


def schema_bytes(schema: pa.Schema) -> bytes:
    """Encode a schema for the journal, or for another process."""
    schema = forms.unmarked(schema)
    for i in object_indices(schema):
        schema = schema.set(i, pa.field(schema.names[i], pa.null(), metadata=_OBJECT_FIELD))
    return cast("bytes", schema.serialize().to_pybytes())


def schema_from(data: bytes) -> pa.Schema:
    """Decode what ``schema_bytes`` made."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise JournalDamaged(
            f"The schema that was kept with the output cannot be read: {str(error).rstrip('.')}. Restore the output "
            "from a copy, or make it anew with mode='overwrite'."
        ) from error
    for i, field in enumerate(schema):
        if pa.types.is_null(field.type) and field.metadata == _OBJECT_FIELD:
            schema = schema.set(i, pa.field(field.name, OBJECTS))
    return schema
