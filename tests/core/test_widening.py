"""Batches of several schemas: widened or filled with nulls, and every value is what it was."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.arrow.batch import concat
from headrace.core.arrow.batch_formats import rows_of
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.arrow.objects import OBJECTS
from headrace.core.arrow.output_schema import conform_to_read
from headrace.core.arrow.values import from_columns
from headrace.core.arrow.widening import widened

F64 = pa.float64()


@pytest.mark.parametrize(
    ("left", "right", "type_"),
    [
        ([1, 2], [0.5], F64),
        ([1, None], [0.5], F64),
        ([2**53 + 1], [0.5], OBJECTS),
        ([2**40 + 1], np.array([0.5], np.float32), F64),
        (np.array([1], np.int8), np.array([2**40]), pa.int64()),
        ([None], ["a"], pa.string()),
        ([None], [1j], OBJECTS),
        ([1], ["a"], OBJECTS),
        ([True], [1], OBJECTS),
        (["a"], [b"a"], OBJECTS),
        ([1j], [1], OBJECTS),
        ([[1]], [[0.5], []], pa.list_(F64)),
        ([{"a": 1}], [{"a": "x"}], OBJECTS),
        ([dt.date(2020, 1, 1)], [dt.time(1)], OBJECTS),
        ([np.zeros(2)], [np.zeros(3)], pa.list_(F64)),
        (np.ones((1, 2, 2), np.float32), np.ones((1, 2, 2)), pa.fixed_shape_tensor(F64, (2, 2))),
        (np.ones((1, 2, 2), np.int8), np.ones((1, 3, 2)), RaggedTensorType(F64, 2)),
        (np.full((1, 2, 2), 2**60 + 1), np.ones((1, 2, 2)), OBJECTS),
    ],
)
def test_two_batches(left: Any, right: Any, type_: pa.DataType) -> None:
    parts = [from_columns({"x": left}), from_columns({"x": right})]
    for first, second in (parts, parts[::-1]):
        made = concat(widened([first, second]))
        assert made.schema.field("x").type == type_
        expected = [*rows_of(first), *rows_of(second)]
        for row, before in zip(rows_of(made), expected, strict=True):
            assert np.array_equal(row["x"], before["x"])


def test_columns_that_are_not_in_all() -> None:
    parts = [from_columns({"a": [1]}), from_columns({"b": ["x"], "a": [2]}), from_columns({"c": [1j]})]
    made = concat(widened(parts))
    assert list(rows_of(made)) == [
        {"a": 1, "b": None, "c": None},
        {"a": 2, "b": "x", "c": None},
        {"a": None, "b": None, "c": 1j},
    ]


NUMBERS = st.lists(
    st.one_of(
        st.none(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.booleans(),
        st.text(max_size=2),
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_no_value_changes(lists: list[list[Any]]) -> None:
    made = concat(widened([from_columns({"x": values}) for values in lists]))
    found = [row["x"] for row in rows_of(made)]
    assert found == [value for values in lists for value in values]
    for value, before in zip(found, (value for values in lists for value in values), strict=True):
        assert type(value) is type(before) or {type(value), type(before)} == {int, float}


def test_what_a_reader_gets_where_types_change() -> None:
    settled = pa.schema([("a", pa.int64()), ("b", pa.string())])
    exact = conform_to_read(from_columns({"b": ["x"], "a": [1.0]}), settled)
    assert exact.schema.equals(settled) and exact.to_pylist() == [{"a": 1, "b": "x"}]
    other = conform_to_read(from_columns({"c": [1], "a": [1.5]}), settled)
    assert other.to_pylist() == [{"a": 1.5, "b": None, "c": 1}]
