"""Columns of vectors: arrays of so many numbers in each row, as pgvector and DuckDB have them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.databases.addresses import Database
from headrace.errors import SinkError

_SIZE = b"headrace.vector"
_HELD = (pa.float32(), pa.float16())


def vector_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column of vectors is inserted; None for columns of other types.

    >>> vector_type(pa.fixed_shape_tensor(pa.float16(), (3,)))
    FixedSizeListType(fixed_size_list<item: float>[3])
    >>> vector_type(pa.list_(pa.float64(), 3))
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        if len(kind.shape) != 1:
            return None
        kind = kind.storage_type
    if not pa.types.is_fixed_size_list(kind) or kind.list_size < 1:
        return None
    return pa.list_(pa.float32(), kind.list_size) if kind.value_type in _HELD else None


def in_files(schema: pa.Schema) -> pa.Schema:
    """Return the types in which parts are staged: Parquet's reader takes no null for an array of a fixed size."""
    return pa.schema(
        [
            pa.field(each.name, pa.list_(pa.float32()), metadata={_SIZE: str(each.type.list_size)})
            if pa.types.is_fixed_size_list(each.type)
            else each
            for each in schema
        ]
    )


def from_files(schema: pa.Schema) -> pa.Schema:
    """Return the types that ``in_files`` was given."""
    found = []
    for each in schema:
        size = (each.metadata or {}).get(_SIZE)
        found.append(pa.field(each.name, each.type if size is None else pa.list_(pa.float32(), int(size))))
    return pa.schema(found)


def staged(column: pa.Array, name: str, database: Database) -> pa.Array:
    """Return vectors as lists; refuse numbers that a vector of the database cannot have."""
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    values = storage.flatten().cast(pa.float32())  # without what lies behind nulls
    if database.scheme == "postgresql" and (
        values.null_count or not pc.all(pc.is_finite(values), min_count=0).as_py()
    ):
        raise SinkError(
            f"The column {name!r} has vectors with NaN, infinity or nulls, which PostgreSQL vectors cannot hold. "
            "Replace them with numbers in a step, or replace the whole vector with null."
        )
    lengths = np.where(storage.is_valid().to_numpy(zero_copy_only=False), storage.type.list_size, 0)
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(ends, values, mask=storage.is_null())


def as_sent(column: pa.Array) -> pa.Array:
    """Return vectors as bytes, as pgvector sends and receives them: their size, two zeros, big-endian floats.

    >>> as_sent(pa.array([[1.0, -2.0]], pa.list_(pa.float32(), 2)))[0].as_py().hex()
    '000200003f800000c0000000'
    """
    size, rows = column.type.list_size, len(column)
    values = column.values.slice(column.offset * size, rows * size).to_numpy(zero_copy_only=False)
    made = np.empty((rows, 4 + 4 * size), np.uint8)
    made[:, :4] = np.frombuffer(size.to_bytes(2, "big") + b"\0\0", np.uint8)
    made[:, 4:] = values.astype(">f4").view(np.uint8).reshape(rows, 4 * size)
    kind = pa.binary(made.shape[1])
    valid = pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(made)]).cast(pa.binary())
