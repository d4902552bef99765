"""Columns of arrays that differ in shape."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from crossed import few
from headrace.core.arrow.batch import concat, from_ipc, schema_bytes, schema_from, to_ipc
from headrace.core.arrow.batch_formats import rows_of, to_format, to_frame, to_numpy
from headrace.core.arrow.forms import RaggedTensorType, as_fixed, as_ragged, joinable, ragged_column
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.values import column_from, from_result
from headrace.core.arrow.widening import widened

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


# ---------------------------------------------------------------- from arrays, and back

DTYPES = st.sampled_from(["?", "i1", "u8", "f2", "f4", "f8", "M8[ns]", "m8[us]"])


@st.composite
def many(draw: st.DrawFn) -> list[np.ndarray[Any, Any] | None]:
    """Arrays of one dtype and number of axes, some of them missing."""
    dtype, ndim = draw(DTYPES), draw(st.integers(2, 3))
    shapes = npst.array_shapes(min_dims=ndim, max_dims=ndim, min_side=0, max_side=3)
    present = draw(st.lists(npst.arrays(dtype, shapes), min_size=1, max_size=5))
    return present + draw(st.lists(st.none(), max_size=1))


def alike(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@settings(max_examples=few(20))
@given(many())
def test_arrays_of_any_shapes_come_back_in_every_format(values: list[Any]) -> None:
    for ragged in (False, True):
        column = column_from(values, ragged=ragged)
        column.validate(full=True)
        batch = pa.record_batch({"x": column})
        (again,) = from_ipc(to_ipc(batch.schema, [batch]))
        for each in (
            list(to_numpy(column)),
            [row["x"] for row in rows_of(again)],
            to_frame(batch)["x"].tolist(),
            list(to_numpy(from_result(to_frame(batch), InputView(batch)).column(0))),
        ):
            assert all(map(alike, each, values)) and len(each) == len(values)


@settings(max_examples=few(20))
@given(many(), many())
def test_tensors_of_one_shape_and_of_several_are_joined(left: list[Any], right: list[Any]) -> None:
    batches = [pa.record_batch({"x": column_from(each)}) for each in (left, right)]
    if joinable(batches[0].schema, batches[1].schema):
        whole = concat(widened(batches))
        assert all(map(alike, to_numpy(whole.column(0)), [*left, *right]))
    else:
        (a, b) = (next(each for each in values if each is not None) for values in (left, right))
        assert a.dtype != b.dtype or a.ndim != b.ndim


def test_vectors_of_several_lengths_are_joined_as_lists() -> None:
    batches = [pa.record_batch({"x": column_from(np.ones((2, k)))}) for k in (1, 3)]
    assert concat(widened(batches)).column(0).to_pylist() == [[1], [1], [1, 1, 1], [1, 1, 1]]


def test_one_shape_and_several_are_the_same_where_all_have_it() -> None:
    fixed = column_from(np.arange(12, dtype=np.int8).reshape(3, 2, 2)).slice(1)
    assert as_ragged(fixed).type == RaggedTensorType(pa.int8(), 2)
    assert as_fixed(as_ragged(fixed), [2, 2]).equals(fixed)
    with pytest.raises(pa.ArrowInvalid, match=r"shape \(2, 2\)"):
        as_fixed(as_ragged(fixed), [4, 1])
    missing = pa.concat_arrays([fixed, pa.nulls(1, fixed.type)])
    assert to_numpy(as_ragged(missing))[2] is None and as_ragged(missing).null_count == 1
    with pytest.raises(pa.ArrowInvalid, match="null"):
        as_fixed(as_ragged(missing), [2, 2])


def test_what_a_function_makes_of_a_ragged_column_is_ragged_whatever_its_shapes() -> None:
    handed = pa.record_batch({"x": batch().column(0), "l": pa.array([[1.0]] * 4, pa.list_(pa.float64()))})
    view = to_format(handed, "numpy")
    result = {"x": [np.zeros((2, 2)) for _ in view["x"]], "l": [each * 2 for each in view["l"]]}
    made = from_result(result, InputView(handed, view))
    assert made.schema.types == [RaggedTensorType(pa.float64(), 2), pa.list_(pa.float64())]
    objects = np.empty(2, object)
    objects[:] = [np.zeros((2, 2)), None]
    assert from_result({"y": objects}).schema.types == [RaggedTensorType(pa.float64(), 2)]
