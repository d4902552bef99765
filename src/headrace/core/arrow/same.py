"""Which rows of two columns hold the same value: by value, whatever the types are stored as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.buffers import mask_of, present
from headrace.core.arrow.plain import PER_SECOND, kind_of, plain

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_EXACT_FLOATS = 2.0**53  # up to here float64 has each integer
_COUNTED = ("timestamp", "instant", "duration")


def same(a: pa.Array, b: pa.Array) -> Mask:
    """Say for each row of two columns of one length whether both values are the same.

    Null is the same as null, NaN as NaN, and -0.0 as 0.0. Numbers are compared by value, whatever their types; so are
    text, times and what is stored in a dictionary. Nested values are the same if all within is. Values of two kinds,
    such as a number and a text, are never the same.

    >>> same(pa.array([1, None, 3]), pa.array([1.0, None, 3.5])).tolist()
    [True, True, False]
    """
    a, b = plain(a), plain(b)
    if not (a.null_count or b.null_count):
        return np.asarray(_values(a, b))
    there, other = present(a), present(b)
    found: Mask = there == other
    both = there & other
    if both.any():
        mask = mask_of(both)
        found[both] = _values(a.filter(mask), b.filter(mask))
    return found


def numbers(column: pa.Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values of a column of numbers without nulls as float64; decimals to the nearest."""
    column = plain(column)
    if pt.is_decimal(column.type):
        column = column.cast(pa.float64())
    return to_numpy(column).astype(np.float64, copy=False)


def _values(a: pa.Array, b: pa.Array) -> Mask:
    """Compare columns without nulls."""
    kind = kind_of(a.type)
    if kind != kind_of(b.type):
        return np.zeros(len(a), np.bool_)
    if a.type == b.type and a.equals(b):  # as most columns of two outputs are; never where one has a NaN
        return np.ones(len(a), np.bool_)
    if kind == "number":
        return _numbers(a, b)
    if kind == "struct":
        return _structs(a, b)
    if kind == "list":
        return _lists(a, b)
    if kind in _COUNTED:
        return _counts_of_units(a, b)
    try:
        return np.asarray(to_numpy(pc.equal(a, b)))
    except pa.ArrowException:  # such as maps
        return np.array(
            [_same_value(x, y) for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)], np.bool_
        )


def _numbers(a: pa.Array, b: pa.Array) -> Mask:
    if pt.is_decimal(a.type) or pt.is_decimal(b.type):
        return _decimals(a, b)
    x, y = to_numpy(a), to_numpy(b)
    if x.dtype.kind == "f" and y.dtype.kind == "f":
        found = np.asarray(x == y)
        if not found.all():
            found |= (x != x) & (y != y)
        return found
    if "f" in (x.dtype.kind, y.dtype.kind):
        whole, real = (y, x) if x.dtype.kind == "f" else (x, y)
        real = real.astype(np.float64)
        found = np.asarray(whole.astype(np.float64) == real)
        for at in np.flatnonzero(found & (np.abs(real) >= _EXACT_FLOATS)):
            found[at] = int(whole[at]) == int(real[at])
        return found
    if x.dtype.kind != y.dtype.kind:  # one has a sign
        signed, plain = (x, y) if x.dtype.kind == "i" else (y, x)
        return np.asarray((signed >= 0) & (signed.astype(np.uint64) == plain))
    return np.asarray(x == y)


def _decimals(a: pa.Array, b: pa.Array) -> Mask:
    """Compare decimals by value with decimals and integers, and to the nearest float64 with floats."""
    if pt.is_floating(a.type) or pt.is_floating(b.type):
        return np.asarray(numbers(a) == numbers(b))
    if a.type == b.type:
        return np.asarray(to_numpy(pc.equal(a, b)))
    pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)  # whatever their digits, Python's are exact
    return np.array([x == y for x, y in pairs], np.bool_)


def _counts_of_units(a: pa.Array, b: pa.Array) -> Mask:
    """Compare times. None is converted to a smaller unit, in which it may have no place."""
    coarse, fine = sorted((a, b), key=lambda each: PER_SECOND[each.type.unit])
    times = PER_SECOND[fine.type.unit] // PER_SECOND[coarse.type.unit]
    whole, rest = np.divmod(to_numpy(fine.cast(pa.int64())), times)
    return np.asarray((rest == 0) & (whole == to_numpy(coarse.cast(pa.int64()))))


def _structs(a: pa.Array, b: pa.Array) -> Mask:
    names = [field.name for field in a.type]
    if sorted(names) != sorted(field.name for field in b.type) or len(set(names)) < len(names):
        return np.zeros(len(a), np.bool_)
    found = np.ones(len(a), np.bool_)
    for name in names:
        found &= same(a.field(name), b.field(name))
    return found


def _lists(a: pa.Array, b: pa.Array) -> Mask:
    sizes = _sizes(a)
    found: Mask = sizes == _sizes(b)
    if not found.all():
        mask = mask_of(found)
        a, b, sizes = a.filter(mask), b.filter(mask), sizes[found]
    different = np.cumsum(np.concatenate([[0], ~same(a.flatten(), b.flatten())]))
    ends = np.cumsum(sizes)
    found[found] = different[ends] == different[ends - sizes]
    return found


def _sizes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    if pt.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    return to_numpy(pc.list_value_length(column)).astype(np.int64)


def _same_value(x: Any, y: Any) -> bool:
    """Compare two Python values as ``same`` compares rows."""
    if isinstance(x, float) and isinstance(y, float):
        return x == y or (x != x and y != y)
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and all(map(_same_value, x, y))
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_same_value(value, y[name]) for name, value in x.items())
    return type(x) is type(y) and bool(x == y)
