"""Arrow's buffers as arrays of numpy, and arrays and Python values as buffers.

``pa.array`` and ``Array.to_numpy`` import pandas where it is installed, which costs 0.35 s in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa

Flags = np.ndarray[Any, np.dtype[np.bool_]]

NUMPY_OF = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
ARROW_OF = {np.dtype(scalar): arrow for arrow, scalar in NUMPY_OF.items()}
LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def bitmap(flags: Flags) -> pa.Buffer:
    """Pack flags into bits."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def mask_of(flags: Flags) -> pa.Array:
    """Return flags as a column, which ``filter`` takes."""
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, bitmap(flags)])


def bits(buffer: pa.Buffer, offset: int, length: int) -> Flags:
    """Return some bits of a buffer as flags."""
    first, skip = offset // 8, offset % 8
    packed = np.frombuffer(buffer, np.uint8, (skip + length + 7) // 8, first)
    return np.unpackbits(packed, bitorder="little")[skip : skip + length].view(np.bool_)


def present(column: pa.Array) -> Flags:
    """Say which values of a column are not null; dictionaries, runs and unions do not say it so."""
    if column.null_count in (0, len(column)):
        return np.full(len(column), not column.null_count)
    return bits(column.buffers()[0], column.offset, len(column))


def raw(column: pa.Array, dtype: Any = None) -> np.ndarray[Any, Any]:
    """View the values of a column of numbers, or of that width, with those under its nulls."""
    data, kind = column.buffers()[1], np.dtype(NUMPY_OF[column.type] if dtype is None else dtype)
    if len(column) == 0 or data is None:
        return np.zeros(len(column), kind)
    # Most of Arrow's buffers could be written to: through this memoryview, nobody can ask for it.
    return np.frombuffer(memoryview(data).toreadonly(), kind, len(column), column.offset * kind.itemsize)


def with_holes(type_: pa.DataType, values: np.ndarray[Any, Any], holes: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap values, of which those at ``holes`` are null."""
    data = bitmap(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(type_, len(values), [bitmap(~holes) if holes.any() else None, data])


def holes_of(values: Sequence[Any] | np.ndarray[Any, Any]) -> Flags:
    """Say which values are None."""
    return np.fromiter(map(is_, values, repeat(None)), np.bool_, len(values))


def offsets_of(lengths: Sequence[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where each of the parts of these lengths begins, laid end to end, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.asarray(lengths, np.int64), out=offsets[1:])
    return offsets


def joined(values: Sequence[bytes | None], type_: pa.DataType) -> pa.Array:
    """Lay strings end to end with their offsets; of the large type where they are too long for this one."""
    offsets = offsets_of([len(value) if value is not None else 0 for value in values])
    type_ = type_ if offsets[-1] < 2**31 else LARGE.get(type_, type_)
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    holes = holes_of(values)
    positions = offsets.astype(np.int32) if type_ in LARGE else offsets
    absent = bitmap(~holes) if holes.any() else None
    return pa.Array.from_buffers(type_, len(values), [absent, pa.py_buffer(positions), data])
