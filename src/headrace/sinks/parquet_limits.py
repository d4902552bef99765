"""What Parquet would hold in a form that cannot be read back, or not as what it was."""

from __future__ import annotations

import functools

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from headrace.core.arrow.batch_formats import is_nested
from headrace.core.arrow.ragged import axes

NULL_VECTOR = (
    f"a whole vector is null, and pyarrow {pa.__version__} cannot read such a file (apache/arrow issue 35692). Use a "
    "vector of NaN, or a variable-size list that is null"
)
NULL_ARRAY = (
    f"an array is null, and pyarrow {pa.__version__} cannot read such a file (apache/arrow issue 35692). Use an "
    "array without values instead, such as `numpy.zeros((0, 4))`, or drop such rows"
)
_NO_VALUES = (
    f"its vectors have no values, and pyarrow {pa.__version__} cannot read such a file. Use a variable-size list "
    "that is empty"
)
_SECONDS = "Parquet has no seconds, and would lose the shape of these arrays; `astype('M8[ms]')` preserves it"

_NESTED_VALUES = (
    "Parquet has no dictionary of lists or dicts; in map_batches(batch_format='pyarrow'), dictionary_decode() makes "
    "plain ones of it"
)


def holds_vectors(kind: pa.DataType) -> bool:
    """Say whether a type is, or has within it, one of arrays of one length."""
    if isinstance(kind, pa.BaseExtensionType):
        return holds_vectors(kind.storage_type)
    if pt.is_fixed_size_list(kind):
        return True
    return pt.is_nested(kind) and any(holds_vectors(kind.field(i).type) for i in range(kind.num_fields))


def unreadable(kind: pa.DataType) -> str:
    """Say why a column of this type would make a file that cannot be read, or not as what it was."""
    if axes(kind) and kind.value_type == pa.timestamp("s"):
        return _SECONDS
    if isinstance(kind, pa.BaseExtensionType):
        return unreadable(kind.storage_type)
    if pt.is_fixed_size_list(kind) and not kind.list_size:
        return _NO_VALUES
    if pt.is_dictionary(kind) and is_nested(kind.value_type):
        return _NESTED_VALUES
    fields = (kind.field(i).type for i in range(kind.num_fields)) if pt.is_nested(kind) else ()
    return next((why for field in fields if (why := unreadable(field))), "")


def has_null_vector(values: pa.Array) -> bool:
    """Say whether one of these arrays is null."""
    if isinstance(values, pa.ExtensionArray):
        return has_null_vector(values.storage)
    kind = values.type
    if not holds_vectors(kind):
        return False
    if pt.is_fixed_size_list(kind) and (values.null_count or not holds_vectors(kind.value_type)):
        return bool(values.null_count)
    if pt.is_map(kind):
        return has_null_vector(values.keys) or has_null_vector(values.items)
    if pt.is_struct(kind):
        return any(has_null_vector(part) for part in values.flatten())
    return has_null_vector(values.flatten())


@functools.cache
def null_vectors_can_be_read() -> bool:
    """Try whether pyarrow reads such arrays back."""
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, pa.schema([("x", pa.list_(pa.int8(), 1))])) as writer:
        writer.write_table(pa.Table.from_arrays([pa.nulls(1, pa.list_(pa.int8(), 1))], ["x"]))
    try:
        pq.ParquetFile(pa.BufferReader(buffer.getvalue())).read()
    except pa.ArrowInvalid:
        return False
    return True
