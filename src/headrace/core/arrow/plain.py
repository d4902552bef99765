"""One form for values, whatever they are stored as: what looks at the values of a column begins with ``plain``.

Dictionaries and runs are written out, views have Arrow's usual layouts, and other types are what they are stored as.
A column that is only carried stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.core.arrow.batch import column_taken
from headrace.core.arrow.buffers import mask_of, offsets_of, present, raw
from headrace.core.arrow.objects import is_objects

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""How many of each unit of times a second has."""
_KINDS = (
    ("number", (pt.is_integer, pt.is_floating, pt.is_decimal)),
    ("boolean", (pt.is_boolean,)),
    ("text", (pt.is_string, pt.is_large_string)),
    ("binary", (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary)),
    ("date", (pt.is_date,)),
    ("time", (pt.is_time,)),
    ("duration", (pt.is_duration,)),
    ("struct", (pt.is_struct,)),
    ("list", (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)),
)


def unwrapped(column: pa.Array) -> pa.Array:
    """Return a column one layer closer to its plain form; the very column if it has that."""
    type_ = column.type
    if pt.is_dictionary(type_):
        indices = column.indices
        places = raw(indices).astype(np.int64)
        places[~present(indices)] = -1
        return column_taken(column.dictionary, places)
    if pt.is_run_end_encoded(type_):
        ends = raw(column.run_ends).astype(np.int64)
        ends = np.clip(ends - column.offset, 0, len(column))
        return column_taken(column.values, np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)))
    if is_list_view(type_):  # Arrow's own cast gives other values where a list is null or empty
        there = present(column)
        sizes = np.where(there, raw(column.sizes), 0)
        offsets = pa.Array.from_buffers(pa.int64(), len(sizes) + 1, [None, pa.py_buffer(offsets_of(sizes))])
        return pa.LargeListArray.from_arrays(
            offsets, column.flatten(), type=plain_type(type_), mask=None if there.all() else mask_of(~there)
        )
    if isinstance(type_, pa.Bool8Type):
        return column.storage.cast(pa.bool_())
    if isinstance(type_, pa.BaseExtensionType) and not is_objects(type_):
        return column.storage
    if pt.is_string_view(type_) or pt.is_binary_view(type_):
        return column.cast(plain_type(type_))
    return column


def plain(column: pa.Array) -> pa.Array:
    """Return a column in its plain form, which Arrow's functions take; a copy only if it has another."""
    while (inner := unwrapped(column)) is not column:
        column = inner
    return column


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that ``plain`` gives a column of this type.

    >>> str(plain_type(pa.dictionary(pa.int8(), pa.string_view()))), str(plain_type(pa.bool8()))
    ('large_string', 'bool')
    """
    if isinstance(type_, pa.Bool8Type):
        return pa.bool_()
    if is_list_view(type_):
        return pa.large_list(type_.value_field)
    if is_encoded(type_) or (isinstance(type_, pa.BaseExtensionType) and not is_objects(type_)):
        return plain_type(*types_within(type_))
    if pt.is_string_view(type_):
        return pa.large_string()
    return pa.large_binary() if pt.is_binary_view(type_) else type_


def kind_of(type_: pa.DataType) -> str:
    """Return what kind of values a type has; only values of one kind can be the same.

    >>> kind_of(pa.float32()), kind_of(pa.dictionary(pa.int8(), pa.string())), kind_of(pa.timestamp("s", "UTC"))
    ('number', 'text', 'instant')
    """
    type_ = plain_type(type_)
    if pt.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "instant"
    return next((kind for kind, tests in _KINDS if any(test(type_) for test in tests)), str(type_))


def types_within(type_: pa.DataType) -> list[pa.DataType]:
    """Return the types that a type is made of: of its values or fields, or what it is stored as."""
    if isinstance(type_, pa.BaseExtensionType):
        return [] if is_objects(type_) else [type_.storage_type]
    if is_encoded(type_):
        return [type_.value_type]
    return [type_.field(i).type for i in range(type_.num_fields)]


def holds(type_: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Say whether a type, or one within it however deep, passes a test.

    >>> holds(pa.struct([("x", pa.list_(pa.date32()))]), pa.types.is_date)
    True
    """
    return test(type_) or any(holds(each, test) for each in types_within(type_))


def columns_within(column: pa.Array) -> list[pa.Array]:
    """Return the columns that a plain column is made of: the fields of its dicts, the values of its lists."""
    type_ = column.type
    if pt.is_map(type_):  # whose own `keys` and `items` are those of other rows, too, where it is a slice
        entries = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        column = column.cast(pa.list_(entries)).flatten()
    if pt.is_union(type_):
        return [column.field(i) for i in range(type_.num_fields)]
    if not pt.is_nested(type_):
        return []
    inner = column.flatten()
    return inner if isinstance(inner, list) else [inner]


def is_nested(type_: pa.DataType) -> bool:
    """Say whether a value of this type holds other values, as lists, dicts and arrays do."""
    return bool(pt.is_nested(plain_type(type_)))


def is_encoded(type_: pa.DataType) -> bool:
    """Say whether a column of this type holds its values as a dictionary, or as runs."""
    return bool(pt.is_dictionary(type_) or pt.is_run_end_encoded(type_))


def is_list_view(type_: pa.DataType) -> bool:
    """Say whether the lists of a column of this type lie anywhere in its values."""
    return bool(pt.is_list_view(type_) or pt.is_large_list_view(type_))
