"""Columns for what takes tensors: lists of one length, and tensors of one shape, are one array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from crossed import few
from headrace.core.arrow.batch_formats import to_format, to_numpy
from headrace.core.arrow.values import column_from


def tensor_of(column: pa.Array) -> np.ndarray[Any, Any]:
    return to_format(pa.record_batch({"x": column}), "numpy", dense=True)["x"]


@settings(max_examples=few(20))
@given(npst.arrays(np.float32, npst.array_shapes(min_dims=2, max_dims=4, max_side=4)), st.data())
def test_lists_of_one_length_become_the_array_that_they_came_from(array: Any, data: st.DataObject) -> None:
    type_ = pa.float32()
    for _ in range(array.ndim - 1):
        type_ = data.draw(st.sampled_from([pa.list_, pa.large_list]))(type_)
    column = pa.array(array.tolist(), type_)
    start = data.draw(st.integers(0, len(array) - 1))
    made = tensor_of(column.slice(start))
    assert made.tobytes() == array[start:].tobytes() and made.shape == array[start:].shape
    assert not made.flags.writeable


def test_what_is_no_tensor_stays_as_it_is() -> None:
    for values, type_ in (
        ([[1], [2, 3]], pa.list_(pa.int64())),
        ([[1], None], pa.list_(pa.int64())),
        ([["a"], ["b"]], pa.list_(pa.string())),
        ([[[1]], [[1], [2]]], pa.list_(pa.list_(pa.int64()))),
        ([[], []], pa.list_(pa.int64())),
    ):
        assert tensor_of(pa.array(values, type_)).dtype == object


def test_ragged_tensors_of_one_shape_are_one_array() -> None:
    column = column_from([np.zeros((2, 3)), np.ones((2, 3)), np.ones((1, 3))])
    assert tensor_of(column).dtype == object
    assert tensor_of(column.slice(0, 2)).shape == (2, 2, 3)
    assert to_numpy(column.slice(0, 2)).shape == (2, 2, 3)
    assert tensor_of(column_from([np.zeros((2, 3)), None, np.zeros((1, 3))]).slice(0, 2)).dtype == object
