"""A column type for arrays that differ in shape, such as images as they come from a camera.

Arrow's own ``arrow.variable_shape_tensor`` has no Python class yet; this one is laid out as that is specified, so
that what does not know it sees a struct of the values and the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> RaggedTensorType:
        return cls(storage_type.field(0).type.value_type, storage_type.field(1).type.list_size)


pa.register_extension_type(RaggedTensorType(pa.uint8(), 3))


def ragged_column(
    type_: RaggedTensorType, values: pa.Array, offsets: pa.Array, shapes: Sequence[Sequence[int]]
) -> pa.Array:
    """Make a column of ``values`` end to end, the int32 ``offsets`` at which arrays begin, and their shapes."""
    flat = pa.array([axis for shape in shapes for axis in shape], pa.int32())
    parts: list[Any] = [
        pa.ListArray.from_arrays(offsets, values),
        pa.FixedSizeListArray.from_arrays(flat, type_.ndim),
    ]
    storage = pa.StructArray.from_arrays(parts, fields=list(type_.storage_type))
    return pa.ExtensionArray.from_storage(type_, storage)
