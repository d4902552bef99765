"""Arrow's own layouts, made from numpy arrays and Python values: buffers of numbers, bits, offsets and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import bitmap, mask_of
from headrace.core.arrow.batch_formats import NUMPY_OF
from headrace.core.arrow.objects import is_objects

_UNITS = ("s", "ms", "us", "ns")
_MOST_DAYS = 2**31 - 1

ARROW_OF = {np.dtype(scalar): arrow for arrow, scalar in NUMPY_OF.items()}


class ConversionError(ValueError):
    """A value that cannot become a column; says which and why. The caller adds where it came from."""


def flat(array: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap a contiguous one-dimensional array of numbers, booleans or times, without a copy if possible."""
    dtype = array.dtype
    if dtype in ARROW_OF:
        return pa.Array.from_buffers(ARROW_OF[dtype], len(array), [None, pa.py_buffer(array)])
    if dtype.kind == "b":
        return mask_of(array)
    if dtype.kind in "Mm":
        return flat_times(array)
    raise ConversionError(f"numpy dtype {dtype} has no Arrow type; convert it first (`astype`)")


def flat_times(array: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap times in the nearest unit that Arrow has; NaT becomes null. What that unit cannot hold is refused."""
    unit, count = np.datetime_data(array.dtype)
    is_instant, holes = array.dtype.kind == "M", np.isnat(array)
    if unit == "generic" or (not is_instant and unit in ("Y", "M")):
        if not holes.all():
            told = "no unit" if unit == "generic" else "months or years, which differ in length"
            raise ConversionError(f"its durations are in {told}; give them another (`astype('m8[us]')`)")
        array = array.astype(f"{array.dtype.kind}8[s]")
    elif is_instant and (unit, count) == ("D", 1):
        days = array.view(np.int64)
        if (np.abs(days[~holes]) > _MOST_DAYS).any():
            raise ConversionError("one of its dates is further away than Arrow can count days")
        return with_holes(pa.date32(), np.where(holes, 0, days).astype(np.int32), holes)
    elif unit not in _UNITS or count != 1:
        near = unit if unit in _UNITS else "ns" if unit in ("ps", "fs", "as") else "s"
        array = exact_times(array, np.dtype(f"{array.dtype.kind}8[{near}]"))
    unit, _ = np.datetime_data(array.dtype)
    type_ = pa.timestamp(unit) if is_instant else pa.duration(unit)
    return with_holes(type_, array.view(np.int64), holes)


def exact_times(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert times to another unit, or refuse: numpy cuts digits and lets big numbers overflow in silence."""
    if np.datetime_data(array.dtype)[0] == "generic":  # NaT
        return array.astype(dtype)
    try:
        made = array.astype(dtype)
        same = np.array_equal(made.astype(array.dtype).view(np.int64), array.view(np.int64))
    except OverflowError:
        same = False
    if not same:
        raise ConversionError(
            f"one of its times, of {array.dtype}, does not fit {dtype}; convert it first (`astype`)"
        )
    return made


def with_holes(type_: pa.DataType, values: np.ndarray[Any, Any], holes: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap values, of which those at ``holes`` are null."""
    data = bitmap(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(type_, len(values), [bitmap(~holes) if holes.any() else None, data])


def whole_numbers(values: Sequence[int]) -> np.ndarray[Any, Any]:
    """Make an array of the integers; of objects if 64 bits do not hold them."""
    for dtype in (np.int64, np.uint64):
        try:
            return np.array(values, dtype)
        except OverflowError:
            continue
    return np.array(values, object)


def holes_of(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say which values are None."""
    return np.fromiter(map(is_, values, repeat(None)), np.bool_, len(values))


def joined(values: Sequence[bytes | None], small: pa.DataType, large: pa.DataType) -> pa.Array:
    """Lay strings end to end with their offsets: the Arrow layout."""
    offsets = offsets_of([len(value) if value is not None else 0 for value in values])
    type_ = small if offsets[-1] < 2**31 else large
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    holes = holes_of(values)
    positions = offsets.astype(np.int32) if type_ is small else offsets
    present = bitmap(~holes) if holes.any() else None
    return pa.Array.from_buffers(type_, len(values), [present, pa.py_buffer(positions), data])


def offsets_of(lengths: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where each of the parts of these lengths begins, laid end to end, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.array(lengths, np.int64), out=offsets[1:])
    return offsets


def own(array: pa.Array) -> pa.Array:
    """Copy a column; one of Python objects shows its memory to nobody."""
    if is_objects(array.type):
        return array
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(
            own(array.indices), own(array.dictionary), ordered=array.type.ordered
        )
    if (
        pa.types.is_primitive(array.type)
        and array.type.bit_width >= 8
        and len(array)
        and not array.null_count
    ):
        # By numpy, whose memory is used again; Arrow's comes from the system each time, page by page.
        width = array.type.bit_width // 8
        data = np.frombuffer(array.buffers()[1], np.uint8)
        part = data[array.offset * width : (array.offset + len(array)) * width].copy()
        return pa.Array.from_buffers(array.type, len(array), [None, pa.py_buffer(part)])
    return pa.concat_arrays([array])


def copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy an array that its owner may fill again; one that nobody can write to stays as it is."""
    return array if is_fixed(array) else array.copy()


def is_fixed(array: np.ndarray[Any, Any]) -> bool:
    """Say whether nobody can write to the array: neither it nor what it views lets them."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return True
