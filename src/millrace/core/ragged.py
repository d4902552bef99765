"""A column type for arrays that differ in shape, such as images as they come from a camera.

Arrow's own ``arrow.variable_shape_tensor`` has no Python class yet; this one is laid out as that is specified, so
that what does not know it sees a struct of the values and the shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


class RaggedTensorType(pa.ExtensionType):  # type: ignore[misc]
    """Arrays of ``ndim`` axes and of one kind of number; stored as ``{data: list, shape: list[ndim]}``."""

    def __init__(self, value_type: pa.DataType, ndim: int) -> None:
        shape = pa.list_(pa.int32(), ndim)
        super().__init__(
            pa.struct([("data", pa.list_(value_type)), ("shape", shape)]), "millrace.ragged_tensor"
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
