"""Columns of arrays that differ in shape."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.batch import concat, from_ipc, rows_of, schema_bytes, schema_from, to_ipc, to_numpy
from millrace.core.ragged import RaggedTensorType, ragged_column

SHAPES = ((2, 3), (0, 4), (1, 2), (5, 1))


def arrays() -> list[np.ndarray[Any, Any]]:
    return [np.arange(i, i + a * b, dtype=np.int16).reshape(a, b) for i, (a, b) in enumerate(SHAPES)]


def batch() -> pa.RecordBatch:
    flat = np.concatenate([array.reshape(-1) for array in arrays()])
    column = ragged_column(flat, np.array(SHAPES), RaggedTensorType(pa.int16(), 2))
    column.validate(full=True)
    return pa.record_batch([column], names=["x"])


def same(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_arrays_come_back_wherever_the_column_is_cut() -> None:
    column = batch().column(0)
    for start in range(5):
        for stop in range(start, 5):
            assert same(to_numpy(column.slice(start, stop - start)), arrays()[start:stop])
    assert same(
        to_numpy(concat([batch().slice(1), batch().slice(0, 2)]).column(0)), arrays()[1:] + arrays()[:2]
    )
    assert same(to_numpy(column.take(pa.array([3, 0]))), [arrays()[3], arrays()[0]])


def test_arrays_are_views_that_nobody_writes_to() -> None:
    for array in to_numpy(batch().column(0)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_rows_hold_arrays() -> None:
    assert same([row["x"] for row in rows_of(batch())], arrays())


def test_nulls() -> None:
    type_ = RaggedTensorType(pa.int16(), 2)
    assert to_numpy(pa.nulls(2, type_)).tolist() == [None, None]
    column = pa.concat_arrays([pa.nulls(1, type_), batch().column(0)])
    assert to_numpy(column)[0] is None
    assert same(to_numpy(column)[1:], arrays())


def test_the_type_travels() -> None:
    schema = batch().schema
    assert schema_from(schema_bytes(schema)).equals(schema)
    assert pickle.loads(pickle.dumps(schema)).equals(schema)
    (again,) = from_ipc(to_ipc(schema, [batch()]))
    assert again.schema.equals(schema)
    assert same(to_numpy(again.column(0)), arrays())


def test_types_differ_by_numbers_and_axes() -> None:
    types = [RaggedTensorType(kind, ndim) for kind in (pa.uint8(), pa.int16()) for ndim in (2, 3)]
    assert len(set(types)) == 4
    assert RaggedTensorType(pa.uint8(), 2) in types
    assert (types[3].value_type, types[3].ndim) == (pa.int16(), 3)
