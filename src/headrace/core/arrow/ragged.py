"""A column type for arrays that differ in shape, such as images as they come from a camera.

Arrow's own ``arrow.variable_shape_tensor`` has no Python class yet; this one is laid out as that is specified, so
that what does not know it sees a struct of the values and the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.forms import ARRAYS, are_lists, is_list, marked


class RaggedTensorType(pa.ExtensionType):  # type: ignore[misc]
    """The type of a column of arrays (h, w, …) that differ in shape; stored as ``{data: list, shape: list[ndim]}``.

    ``value_type`` is the Arrow type of their numbers, the same for all, and ``ndim`` the axes that each has.
    Functions get n objects, each of them an array or None. Raises nothing.

    >>> import pyarrow as pa, headrace as hr
    >>> hr.RaggedTensorType(pa.float32(), 2).ndim
    2
    """

    def __init__(self, value_type: pa.DataType, ndim: int) -> None:
        shape = pa.list_(pa.int32(), ndim)
        super().__init__(
            pa.struct([("data", pa.list_(value_type)), ("shape", shape)]), "headrace.ragged_tensor"
        )

    @property
    def value_type(self) -> pa.DataType:
        """The type of the numbers."""
        return self.storage_type.field(0).type.value_type

    @property
    def ndim(self) -> int:
        """How many axes each array has."""
        return int(self.storage_type.field(1).type.list_size)

    def __hash__(self) -> int:
        return hash((self.extension_name, self.storage_type))

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> RaggedTensorType:
        return cls(storage_type.field(0).type.value_type, storage_type.field(1).type.list_size)


pa.register_extension_type(RaggedTensorType(pa.uint8(), 3))


def ragged_column(
    values: np.ndarray[Any, Any] | pa.Array,
    shapes: np.ndarray[Any, Any],
    type_: RaggedTensorType,
    holes: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
) -> pa.Array:
    """Make a column of arrays that lie end to end in ``values``, of ``shapes`` (n, ndim); ``holes`` are null."""
    ends = np.zeros(len(shapes) + 1, np.int32)
    np.cumsum(shapes.prod(axis=1, dtype=np.int64), out=ends[1:])
    axes = np.ascontiguousarray(shapes, np.int32)
    data_type, shape_type = (field.type for field in type_.storage_type)
    if isinstance(values, np.ndarray):
        values = pa.Array.from_buffers(type_.value_type, len(values), [None, pa.py_buffer(values)])
    data = pa.Array.from_buffers(data_type, len(shapes), [None, pa.py_buffer(ends)], children=[values])
    flat = pa.Array.from_buffers(pa.int32(), axes.size, [None, pa.py_buffer(axes)])
    shape = pa.Array.from_buffers(shape_type, len(shapes), [None], children=[flat])
    present = None
    if holes is not None and holes.any():
        present = pa.py_buffer(np.packbits(~holes, bitorder="little"))
    storage = pa.StructArray.from_buffers(type_.storage_type, len(shapes), [present], children=[data, shape])
    return pa.ExtensionArray.from_storage(type_, storage)


# ---------------------------------------------------------------- tensors of one shape among them


def axes(type_: pa.DataType) -> int | None:
    """Return how many axes the arrays of a column of tensors have; None for any other type."""
    if isinstance(type_, RaggedTensorType):
        return type_.ndim
    return len(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else None


def ragged_type(type_: pa.DataType) -> pa.DataType:
    """Return the type for tensors, or vectors, like these whose shapes may differ; any other type as it is."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return RaggedTensorType(type_.value_type, len(type_.shape))
    return pa.list_(type_.value_type) if pa.types.is_fixed_size_list(type_) else type_


def as_ragged(column: pa.Array) -> pa.Array:
    """Turn tensors of one shape into a column whose shapes may differ, and vectors into lists."""
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        return column.cast(ragged_type(type_))
    if not isinstance(type_, pa.FixedShapeTensorType):
        return column
    holes = np.zeros(len(column), np.bool_)
    if column.null_count:
        holes[:] = column.is_null().to_pylist()
    shapes = np.broadcast_to(np.array(type_.shape, np.int64), (len(column), len(type_.shape))).copy()
    shapes[holes] = 0
    return ragged_column(column.storage.flatten(), shapes, ragged_type(type_), holes)


def as_fixed(column: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Turn a ragged column into tensors of one shape; raises ``ArrowInvalid`` if an array has another."""
    type_ = column.type
    if not isinstance(type_, RaggedTensorType):
        return column
    if column.null_count:
        raise pa.ArrowInvalid("an array is null")
    data, shapes = (column.storage.field(i) for i in range(2))
    for each in shapes.to_pylist():
        if each != list(shape):
            raise pa.ArrowInvalid(f"an array has the shape {tuple(each)}")
    values = data.flatten()
    size = int(np.prod(shape))
    storage = pa.Array.from_buffers(pa.list_(values.type, size), len(column), [None], children=[values])
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, shape), storage)


def joinable(left: pa.Schema, right: pa.Schema) -> bool:
    """Say whether rows of both can be put end to end, as they differ at most in the shapes of tensors."""
    if left.equals(right):
        return True
    return bool(left.names == right.names) and all(
        a.equals(b) or ragged_type(a).equals(ragged_type(b))
        for a, b in zip(left.types, right.types, strict=True)
    )


def joined(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Give batches that are ``joinable`` one schema, in which the shapes of tensors may differ.

    A column that becomes lists is marked as made of arrays, unless some of the batches had lists.
    """
    first, *others = (batch.schema for batch in batches)
    if all(schema.equals(first) for schema in others):
        return batches
    mixed = [i for i, type_ in enumerate(first.types) if any(not s.types[i].equals(type_) for s in others)]
    arrays = {
        first.names[i]: ARRAYS
        for i in mixed
        if is_list(ragged_type(first.types[i]))
        and not any(are_lists(schema.field(i)) for schema in (first, *others))
    }
    made = []
    for batch in batches:
        for i in mixed:
            batch = batch.set_column(i, first.names[i], as_ragged(batch.column(i)))
        made.append(marked(batch, arrays))
    return made
