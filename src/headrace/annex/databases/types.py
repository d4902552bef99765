"""Which Arrow types a table holds, vectors among them, and whether a column fits one that is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.annex.databases.addresses import Database
from headrace.errors import SinkError

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WIDER = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def stored(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column is inserted, which holds all its values; None if no table has one.

    >>> print(stored(pa.uint32()), stored(pa.dictionary(pa.int8(), pa.string())), stored(pa.uint64()))
    int64 string None
    """
    if pt.is_dictionary(kind):
        return stored(kind.value_type)
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    for test, found in (
        (pt.is_float16, pa.float32()),
        (pt.is_date, pa.date32()),
        (pt.is_string, pa.string()),
        (pt.is_large_string, pa.string()),
        (pt.is_string_view, pa.string()),
        (pt.is_binary, pa.binary()),
        (pt.is_large_binary, pa.binary()),
        (pt.is_fixed_size_binary, pa.binary()),
    ):
        if test(kind):
            return found
    vector = vector_type(kind)
    if vector is not None:
        return vector
    plain = (
        pt.is_signed_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_decimal128(kind)
    )
    return kind if plain else None


def same_names(names: Sequence[str]) -> tuple[str, str] | None:
    """Return two names that SQLite and DuckDB take for one, as they look at no case; None if there are none.

    >>> same_names(["id", "Score", "score"])
    ('Score', 'score')
    """
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            return other, name
    return None


def fits(kind: pa.DataType, there: pa.DataType) -> bool:
    """Say whether a column of a table holds all values of a type, exactly.

    >>> fits(pa.int32(), pa.int64()), fits(pa.int64(), pa.int32()), fits(pa.int64(), pa.float64())
    (True, False, False)
    """
    if kind == there or (pt.is_timestamp(kind) and pt.is_timestamp(there)):
        return kind == there or (there.unit == "us" and bool(kind.tz) == bool(there.tz))
    if pt.is_fixed_size_list(kind):  # and lists of any size
        return bool(pt.is_list(there) and there.value_type == kind.value_type)
    if kind in _WIDER and there in _WIDER:
        return _WIDER.index(kind) <= _WIDER.index(there)
    if pt.is_floating(there):
        return there == pa.float64() and kind in (pa.int8(), pa.int16(), pa.int32(), pa.float32())
    if pt.is_decimal(there):
        scale, whole = (
            (kind.scale, kind.precision - kind.scale) if pt.is_decimal(kind) else (0, _DIGITS.get(kind, 99))
        )
        return bool(scale <= there.scale and whole <= there.precision - there.scale)
    return False


def kept(kind: pa.DataType, there: pa.DataType | None) -> bool:
    """Say whether a column is inserted as it is: decimals of any scale, and what SQLite takes anyway."""
    return (
        there is None
        or pt.is_decimal(kind)
        or pt.is_boolean(kind)
        or pt.is_timestamp(kind)
        or pt.is_fixed_size_list(kind)
    )


def is_plain(kind: pa.DataType) -> bool:
    """Say whether SQLite has a type for it."""
    return not (pt.is_temporal(kind) or pt.is_decimal(kind) or pt.is_fixed_size_list(kind))


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
