"""What a step sees of a batch."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.arrow.batch import concat, empty_columns, from_ipc, schema_bytes, schema_from, to_ipc
from headrace.core.arrow.batch_formats import is_tensor, rows_of, to_format, to_numpy
from headrace.errors import JournalDamaged

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


@given(st.sampled_from(INTEGERS + FLOATS), st.lists(st.none() | st.integers(0, 100)), st.data())
def test_numbers_with_nulls_are_floats_with_nan(
    type_: pa.DataType, values: list[int | None], data: st.DataObject
) -> None:
    column = pa.array(values, type_) if type_ not in FLOATS else pa.array(values, pa.float64()).cast(type_)
    start = data.draw(st.integers(0, len(values)))
    part, wanted = column.slice(start), values[start:]
    array = to_numpy(part)
    if None in wanted:
        assert array.dtype == (np.float64 if type_ in INTEGERS else type_.to_pandas_dtype())
    else:
        assert array.dtype == type_.to_pandas_dtype()
    np.testing.assert_array_equal(array, np.array([np.nan if v is None else v for v in wanted], array.dtype))


@given(st.lists(st.none() | st.booleans()), st.data())
def test_booleans(values: list[bool | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    array = to_numpy(pa.array(values, pa.bool_()).slice(start, stop - start))
    assert array.tolist() == values[start:stop]
    assert array.dtype == (object if None in values[start:stop] else np.bool_)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([dt.date(2020, 1, 2), None]), np.array(["2020-01-02", "NaT"], "M8[D]")),
        (pa.array([dt.date(2020, 1, 2)], pa.date64()), np.array(["2020-01-02"], "M8[ms]")),
        (pa.array([1, None], pa.timestamp("ns", "UTC")), np.array([1, "NaT"], "M8[ns]")),
        (pa.array([1, None], pa.duration("us")), np.array([1, "NaT"], "m8[us]")),
        (pa.array(["a", None]), np.array(["a", None], object)),
        (pa.array(["a", "b"], pa.large_string()), np.array(["a", "b"], object)),
        (pa.array(["a", "b"], pa.string_view()), np.array(["a", "b"], object)),
        (pa.array(["a", "b", "a"]).dictionary_encode(), np.array(["a", "b", "a"], object)),
        (pa.array([b"a"]), np.array([b"a"], object)),
        (pa.nulls(2), np.array([None, None], object)),
        (pa.array([dt.time(1)]), np.array([dt.time(1)], object)),
        (pa.array([{"x": 1}]), np.array([{"x": 1}], object)),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), np.array([[1, 2], [3, 4]], np.int8)),
        (pa.array([[[1], [2]]], pa.list_(pa.list_(pa.int8(), 1), 2)), np.array([[[1], [2]]], np.int8)),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_every_kind_of_column_is_an_array(column: pa.Array, wanted: np.ndarray[Any, Any]) -> None:
    longer = pa.concat_arrays([column, column])
    for array in (to_numpy(column), to_numpy(longer.slice(len(column)))):
        assert array.dtype == wanted.dtype and array.shape == wanted.shape
        np.testing.assert_array_equal(array, wanted)
        assert not array.flags.writeable
    assert to_numpy(column.slice(0, 0)).shape == (0, *wanted.shape[1:])


def test_lists_are_objects_that_hold_arrays() -> None:
    array = to_numpy(pa.array([[1, 2], None, []], pa.list_(pa.int32())))
    assert array[0].tolist() == [1, 2] and array[0].dtype == np.int32
    assert array[1] is None and array[2].tolist() == []
    missing = to_numpy(pa.array([[1, 2], None], pa.list_(pa.int8(), 2)))
    assert missing[0].tolist() == [1, 2] and missing[1] is None


def test_views_of_numbers_copy_nothing() -> None:
    column = pa.array(range(100), pa.int64())
    assert to_numpy(column.slice(10)).ctypes.data == column.buffers()[1].address + 80


def test_formats() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"]})
    assert {name: values.tolist() for name, values in to_format(batch, "numpy").items()} == batch.to_pydict()
    assert to_format(batch, "pyarrow").to_pydict() == batch.to_pydict()
    assert to_format(batch, "pandas").to_dict("list") == batch.to_pydict()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([1_000, None], pa.timestamp("ns")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1), None]),
        (pa.array([1_001, None], pa.timestamp("ns")), [np.datetime64(1_001, "ns"), None]),
        (pa.array([2_000], pa.duration("ns")), [dt.timedelta(microseconds=2)]),
        (
            pa.array([0], pa.timestamp("ns", "UTC")),
            [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)],
        ),
        (pa.array([1.5, None]), [1.5, None]),
    ],
)
def test_rows_hold_values_of_python(column: pa.Array, values: list[Any]) -> None:
    rows = list(rows_of(pa.RecordBatch.from_arrays([column], names=["x"])))
    assert [row["x"] for row in rows] == values
    assert [type(row["x"]) for row in rows] == [type(value) for value in values]


def test_batches_without_columns_keep_their_rows() -> None:
    batch = empty_columns(3)
    assert batch.num_rows == 3 and list(rows_of(batch)) == [{}, {}, {}]
    assert concat([batch, batch]).num_rows == 6


def test_tensors_are_recognised() -> None:
    assert is_tensor(pa.list_(pa.list_(pa.bool_(), 2), 3))
    assert is_tensor(pa.fixed_shape_tensor(pa.int8(), (2, 2)))
    assert not is_tensor(pa.list_(pa.string(), 3)) and not is_tensor(pa.list_(pa.int8()))


def test_batches_and_schemas_travel() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, None], "b": ["x", "y"]})
    data = to_ipc(batch.schema, [batch.slice(0, 1), batch.slice(1)])
    assert pa.Table.from_batches(from_ipc(data)).to_pydict() == batch.to_pydict()
    assert schema_from(schema_bytes(batch.schema)).equals(batch.schema)


def test_a_damaged_schema_is_an_error_of_ours() -> None:
    whole = schema_bytes(pa.schema([("x", pa.int64())]))
    for data in (b"", whole[:-9], b"x" + whole, bytes(len(whole))):
        with pytest.raises(JournalDamaged, match=r"schema that was kept .* cannot be read"):
            schema_from(data)
