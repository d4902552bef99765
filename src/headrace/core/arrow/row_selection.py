"""Some of the rows of a batch: also of columns for which Arrow has no such function yet, such as string views."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.objects import is_objects, object_column, objects_of, with_own_objects

Indices = np.ndarray[Any, np.dtype[np.int64]]


def filtered(batch: pa.RecordBatch, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.RecordBatch:
    """Return the rows for which ``mask`` is true."""
    try:
        return with_own_objects(
            batch.filter(pa.Array.from_buffers(pa.bool_(), len(mask), [None, _bitmap(mask)]))
        )
    except pa.ArrowNotImplementedError:
        return taken(batch, np.flatnonzero(mask))


def taken(batch: pa.RecordBatch, indices: Indices) -> pa.RecordBatch:
    """Return the rows of these numbers, in this order."""
    try:
        return with_own_objects(batch.take(_places(indices)))
    except pa.ArrowNotImplementedError:
        columns = [column_taken(column, indices) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def column_taken(column: pa.Array, indices: Indices) -> pa.Array:
    """Return the values at these places, in this order; null for the place -1."""
    try:
        found = column.take(_places(indices))
        return object_column(objects_of(found)) if is_objects(column.type) else found
    except pa.ArrowNotImplementedError:  # but it can cut every type, and join every type
        pieces = [
            column.slice(start, count) if start >= 0 else pa.nulls(count, column.type)
            for start, count in _runs(indices)
        ]
        return pa.concat_arrays(pieces or [column.slice(0, 0)])


def with_present_values(column: pa.Array) -> pa.Array:
    """Return a dictionary column in which a null has no index; in Arrow, a value may be the null, too.

    >>> twofold = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([None, "a"]))
    >>> with_present_values(twofold).dictionary.to_pylist()
    ['a']
    """
    values = column.dictionary
    if not values.null_count:
        return column
    there = np.array([value.is_valid for value in values])
    places = _places(np.where(there, np.cumsum(there) - 1, -1)).cast(column.indices.type)
    return pa.DictionaryArray.from_arrays(
        places.take(column.indices), column_taken(values, np.flatnonzero(there)), ordered=column.type.ordered
    )


def _places(indices: Indices) -> pa.Array:
    """Lay the places out by buffers: ``pa.array`` would import pandas."""
    missing = indices < 0
    buffers = [
        _bitmap(~missing) if missing.any() else None,
        pa.py_buffer(np.ascontiguousarray(indices, np.int64)),
    ]
    return pa.Array.from_buffers(pa.int64(), len(indices), buffers)


def _bitmap(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _runs(indices: Indices) -> Iterator[tuple[int, int]]:
    """Yield neighbouring rows as (first, count).

    >>> list(_runs(np.array([2, 3, 4, 7, 0])))
    [(2, 3), (7, 1), (0, 1)]
    """
    if not len(indices):
        return
    broken = (np.diff(indices) != 1) | (indices[:-1] < 0)
    breaks = [0, *(np.flatnonzero(broken) + 1).tolist(), len(indices)]
    for start, stop in pairwise(breaks):
        yield int(indices[start]), stop - start
