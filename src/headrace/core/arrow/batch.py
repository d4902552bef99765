"""Batches: cutting, joining, on their way to another process, and made of memory that Python owns."""

from __future__ import annotations

import atexit
import gc
import itertools
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from headrace.core.arrow import forms
from headrace.core.arrow.buffers import LARGE, mask_of, with_holes
from headrace.core.arrow.objects import (
    OBJECTS,
    is_objects,
    object_column,
    object_indices,
    objects_of,
    with_own_objects,
)
from headrace.errors import BadInput, JournalDamaged

MOST_BYTES = 2**31 - 1  # of all values of a column whose offsets have 32 bits, such as `binary`

_OBJECT_FIELD = {b"headrace.object": b"1"}


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the table as one batch, copying only columns of several chunks.

    A column that is too big for its type gets the wider one, such as ``large_binary``. Raises ``BadInput`` where
    there is none.
    """
    if table.num_columns == 0:
        return empty_columns(table.num_rows)
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns.append(one_array(column))
        except pa.ArrowInvalid as error:
            raise BadInput(
                f"column {name!r} of {column.type} cannot hold the {table.num_rows:,} rows of one batch ({error}). "
                "Take fewer rows at a time: a smaller `batch_size`."
            ) from error
    schema = table.schema
    for i, column in enumerate(columns):
        if not column.type.equals(schema.field(i).type):  # became wider
            schema = schema.set(i, schema.field(i).with_type(column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, copying only if it has several chunks; of a wider type if it is too big."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    if pa.types.is_dictionary(column.type):
        return _one_dictionary(column)
    if is_objects(column.type):
        return object_column(objects_of(column))
    try:
        return pa.concat_arrays(column.chunks)
    except pa.ArrowInvalid:  # offsets of 32 bits count no further
        wide = _wide(column.type)
        if wide.equals(column.type):
            raise
        return pa.concat_arrays([chunk.cast(wide) for chunk in column.chunks])


def _wide(type_: pa.DataType) -> pa.DataType:
    """Return the type with offsets of 64 bits, however deep.

    >>> _wide(pa.struct([("x", pa.list_(pa.string()))]))
    StructType(struct<x: large_list<item: large_string>>)
    """
    if pa.types.is_list(type_):
        type_ = pa.large_list(type_.value_field)
    texts = pa.types.is_string(type_) or pa.types.is_binary(type_)
    return LARGE[type_] if texts else forms.changed_within(type_, _wide)


def fits(batch: pa.RecordBatch, schema: pa.Schema) -> bool:
    """Say whether the columns of a batch are certainly not too big for the types of a schema."""
    return bool(batch.schema.equals(schema) or batch.nbytes <= MOST_BYTES)


def _one_dictionary(column: pa.ChunkedArray) -> pa.Array:
    try:
        return pa.concat_arrays(column.unify_dictionaries().chunks)
    except pa.ArrowInvalid:  # together they have more values than an index of this width can count
        wide = pa.dictionary(pa.int32(), column.type.value_type, column.type.ordered)
        return pa.concat_arrays(column.cast(wide).unify_dictionaries().chunks)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, type_) for type_ in schema.types], schema=schema)


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
            "from a copy, or make it again with mode='overwrite'."
        ) from error
    for i, field in enumerate(schema):
        if pa.types.is_null(field.type) and field.metadata == _OBJECT_FIELD:
            schema = schema.set(i, pa.field(field.name, OBJECTS))
    return schema


Indices = np.ndarray[Any, np.dtype[np.int64]]


def filtered(batch: pa.RecordBatch, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.RecordBatch:
    """Return the rows for which ``mask`` is true."""
    try:
        return with_own_objects(batch.filter(mask_of(mask)))
    except pa.ArrowNotImplementedError:
        return taken(batch, np.flatnonzero(mask))


def taken(batch: pa.RecordBatch, indices: Indices) -> pa.RecordBatch:
    """Return the rows of these numbers, in this order."""
    try:
        return with_own_objects(batch.take(_places(indices)))
    except pa.ArrowNotImplementedError:
        columns = [column_taken(column, indices) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def column_taken(column: pa.Array, indices: Indices) -> pa.Array:
    """Return the values at these places, in this order; null for the place -1."""
    try:
        found = column.take(_places(indices))
        return object_column(objects_of(found)) if is_objects(column.type) else found
    except pa.ArrowNotImplementedError:  # but it can cut every type, and join every type
        pieces = [
            column.slice(start, count) if start >= 0 else pa.nulls(count, column.type)
            for start, count in _runs(indices)
        ]
        return pa.concat_arrays(pieces or [column.slice(0, 0)])


def with_present_values(column: pa.Array) -> pa.Array:
    """Return a dictionary column in which a null has no index; in Arrow, a value may be the null, too.

    >>> twofold = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([None, "a"]))
    >>> with_present_values(twofold).dictionary.to_pylist()
    ['a']
    """
    values = column.dictionary
    if not values.null_count:
        return column
    there = np.array([value.is_valid for value in values])
    places = _places(np.where(there, np.cumsum(there) - 1, -1)).cast(column.indices.type)
    return pa.DictionaryArray.from_arrays(
        places.take(column.indices), column_taken(values, np.flatnonzero(there)), ordered=column.type.ordered
    )


def _places(indices: Indices) -> pa.Array:
    return with_holes(pa.int64(), np.ascontiguousarray(indices, np.int64), indices < 0)


def _runs(indices: Indices) -> Iterator[tuple[int, int]]:
    """Yield neighbouring rows as (first, count).

    >>> list(_runs(np.array([2, 3, 4, 7, 0])))
    [(2, 3), (7, 1), (0, 1)]
    """
    if not len(indices):
        return
    broken = (np.diff(indices) != 1) | (indices[:-1] < 0)
    breaks = [0, *(np.flatnonzero(broken) + 1).tolist(), len(indices)]
    for start, stop in pairwise(breaks):
        yield int(indices[start]), stop - start


# ---------------------------------------------------------------- memory of Python that Arrow's threads read

# A reader of Arrow's reads ahead in a thread. If that thread lets go of memory of Python while the interpreter ends,
# the process aborts: the thread cannot get the interpreter's lock any more, and C++ takes its end for an error.

_SECONDS = 0.5
_numbers = itertools.count()
_held: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def lent(data: bytes | memoryview) -> Any:
    """Return the same memory as an object that is waited for when the process ends.

    >>> bytes(lent(b"ab"))
    b'ab'
    """
    return held(np.frombuffer(data, np.uint8))


def held(thing: Any) -> Any:
    """Return an object, such as a stream, that is waited for when the process ends."""
    _held[next(_numbers)] = thing
    return thing


def lent_stream(data: bytes) -> pa.BufferReader:
    """Return a stream of ``data`` for a reader that reads ahead."""
    return pa.BufferReader(pa.py_buffer(lent(data)))


@atexit.register
def _wait() -> None:
    """Wait until Arrow's threads have let go, for a moment: they need only their turn."""
    until = time.monotonic() + _SECONDS
    while len(_held) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.001)
