"""What the user gives back becomes Arrow, and comes out of it as it went in."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace.core.arrow.batch_formats import rows_of, to_format, to_numpy
from headrace.core.arrow.columns import why_objects
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.objects import is_objects
from headrace.core.arrow.values import ConversionError, column_from, from_columns, from_result, from_rows

NUMBERS = st.one_of(
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness="="),
    npst.floating_dtypes(sizes=(16, 32, 64), endianness="="),
    npst.boolean_dtypes(),
)
TIMES = st.sampled_from([f"{kind}8[{unit}]" for kind in "Mm" for unit in ("s", "ms", "us", "ns")]).map(
    np.dtype
)
SHAPES = npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)


def same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Say whether two arrays are of one dtype and shape and hold the same bits, NaN and NaT included."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


# ---------------------------------------------------------------- numpy there and back


@given(st.one_of(NUMBERS, TIMES).flatmap(lambda dtype: npst.arrays(dtype, SHAPES)), st.data())
def test_arrays_come_back_as_they_went(array: np.ndarray[Any, Any], data: st.DataObject) -> None:
    column = column_from(array)
    assert len(column) == len(array)
    assert same(to_numpy(column), np.ascontiguousarray(array))
    start = data.draw(st.integers(0, len(array)))
    stop = data.draw(st.integers(start, len(array)))
    part = to_numpy(column.slice(start, stop - start))
    assert same(part, np.ascontiguousarray(array[start:stop]))
    assert not part.flags.writeable


@given(npst.arrays(st.sampled_from([">i4", ">f8", ">u2"]).map(np.dtype), st.integers(0, 5)))
def test_foreign_byte_orders_keep_their_values(array: np.ndarray[Any, Any]) -> None:
    assert same(to_numpy(column_from(array)), array.astype(array.dtype.newbyteorder("=")))


@given(npst.arrays(np.int32, st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_strided_arrays(array: np.ndarray[Any, Any]) -> None:
    for view in (array.T, array[::-1], array[:, ::2], array[::2]):
        assert same(to_numpy(column_from(view)), np.ascontiguousarray(view))


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (np.zeros((4, 3), np.float32), pa.list_(pa.float32(), 3)),
        (np.zeros((4, 0), np.float32), pa.list_(pa.float32(), 0)),
        (np.zeros((4, 2, 3), np.uint8), pa.fixed_shape_tensor(pa.uint8(), (2, 3))),
        (np.zeros((0, 2), np.int64), pa.list_(pa.int64(), 2)),
        (np.zeros(3, "M8[D]"), pa.date32()),
        (np.zeros(3, "M8[h]"), pa.timestamp("s")),
        (np.zeros(3, "M8[Y]"), pa.timestamp("s")),
        (np.zeros(3, "m8[10ms]"), pa.duration("ms")),
        (np.array(["a", "ü"]), pa.string()),
        (np.array([b"a", b"bc"]), pa.binary()),
        (np.array([["a", "b"]]), pa.list_(pa.string())),
        (np.array([1, None], object), pa.int64()),
        (
            np.array([(1, 2.5)], [("x", np.int32), ("y", np.float64)]),
            pa.struct([("x", pa.int32()), ("y", pa.float64())]),
        ),
    ],
)
def test_the_type_of_a_column_is_that_of_the_array(array: Any, type_: pa.DataType) -> None:
    column = column_from(array)
    assert column.type == type_
    assert len(column) == len(array)
    column.validate(full=True)


def test_what_is_masked_is_null() -> None:
    masked = np.ma.masked_array([1.5, 2.5, 3.5], [False, True, False])
    assert column_from(masked).to_pylist() == [1.5, None, 3.5]


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "M8[D]", "M8[ns]", "m8[us]", "U3", "O"])
def test_a_masked_array_keeps_its_dtype_and_its_mask(dtype: str) -> None:
    plain = np.array([1, 0, 1]).astype(dtype)
    made = column_from(np.ma.masked_array(plain, [False, True, False]))
    expected = column_from(plain)
    assert made.type == expected.type
    assert made.to_pylist() == [expected[0].as_py(), None, expected[2].as_py()]


def test_masks_in_axes_and_fields_and_lists() -> None:
    table = np.ma.masked_array([[1, 2], [3, 4]], [[True, False], [False, False]])
    assert column_from(table).to_pylist() == [[None, 2], [3, 4]]
    assert column_from(list(table)).to_pylist() == [[None, 2], [3, 4]]
    assert column_from([table[0], table[1, :1]]).to_pylist() == [[None, 2], [3]]
    deep = column_from(np.ma.masked_array(np.ones((1, 2, 2), np.int8), [[[0, 1], [0, 0]]]))
    assert deep.storage.to_pylist() == [[1, None, 1, 1]]
    fields = np.ma.masked_array(np.zeros(2, [("x", "i4")]), [True, False])
    assert column_from(fields).to_pylist() == [{"x": None}, {"x": 0}]
    several = [table, np.ma.masked_array(np.zeros((1, 2)))]
    assert is_objects(column_from(several).type) and "masks and different shapes" in why_objects(several)


def test_a_masked_view_of_what_was_handed_out_keeps_its_mask() -> None:
    batch = pa.record_batch({"x": pa.array([1, 2, 3])})
    view = to_format(batch, "numpy")
    result = {"x": np.ma.masked_array(view["x"], [False, True, False])}
    assert from_result(result, InputView(batch, view)).to_pydict() == {"x": [1, None, 3]}


@given(st.lists(st.none() | st.integers(-(2**63) + 1, 2**63 - 1), min_size=1), st.sampled_from(["M8", "m8"]))
def test_nanoseconds_of_pandas_are_kept(values: list[int | None], kind: str) -> None:
    of = pd.Timestamp if kind == "M8" else pd.Timedelta
    given_ = [None if value is None else of(np.array(value, f"{kind}[ns]")[()]) for value in values]
    column = column_from(given_)
    assert [None if each.as_py() is None else each.value for each in column] == values
    assert column_from(pd.Series(given_, dtype=object)).equals(column)
    assert column_from([[each] for each in given_]).flatten().equals(column)


def test_zones_stay_and_instants_too() -> None:
    tokyo, utc = zoneinfo.ZoneInfo("Asia/Tokyo"), dt.UTC
    times = [dt.datetime(2020, 1, 1, tzinfo=tokyo), None, dt.datetime(2020, 1, 1, tzinfo=utc)]
    column = column_from(times)
    assert column.type == pa.timestamp("us", "Asia/Tokyo") and column.to_pylist() == times
    stamp = pd.Timestamp(1, unit="ns", tz="Asia/Tokyo")
    assert column_from([stamp]).type == pa.timestamp("ns", "Asia/Tokyo")
    assert next(iter(rows_of(pa.record_batch({"t": column_from([stamp])}))))["t"] == stamp


def test_an_array_filled_again_does_not_change_its_column() -> None:
    array = np.arange(5)
    column = column_from(array)
    array[:] = 0
    assert column.to_pylist() == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- Python values there and back

SCALARS = [
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(st.characters(codec="utf-8")),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.timedeltas(dt.timedelta(-(10**4)), dt.timedelta(10**4)),
]
VALUES: st.SearchStrategy[Any] = st.one_of(
    *[st.lists(st.none() | scalar, max_size=6) for scalar in SCALARS],
    *[st.lists(st.none() | st.lists(st.none() | scalar, max_size=3), max_size=5) for scalar in SCALARS],
    st.lists(st.none() | st.fixed_dictionaries({"a": SCALARS[0], "b": st.none() | SCALARS[3]}), max_size=5),
)


@given(VALUES)
def test_lists_come_back_as_they_went(values: list[Any]) -> None:
    column = column_from(values)
    column.validate(full=True)
    assert column.to_pylist() == values


@given(VALUES)
def test_lists_become_what_arrow_would_make_of_them(values: list[Any]) -> None:
    assert column_from(values).equals(pa.array(values))


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2.5, None], pa.float64()),
        ([None, None], pa.null()),
        ([], pa.null()),
        ([2**63], pa.uint64()),
        ([np.int32(1), np.int32(2)], pa.int32()),
        ([np.float32(1), None], pa.float32()),
        ([np.float16(1.5), 70_000], pa.float64()),
        ([np.uint64(1), np.int64(-1)], pa.int64()),
        ([np.float32(0.5), np.float64(0.1)], pa.float64()),
        ([np.array(1.5, np.float32), None], pa.float32()),
        ([np.array(1, "M8[ns]")], pa.timestamp("ns")),
        ([np.datetime64("2020-01-01"), None], pa.date32()),
        ([pd.NA, "a"], pa.string()),
        ([pd.NaT, dt.datetime(2020, 1, 1)], pa.timestamp("us")),
        ([np.ma.masked, 1.5], pa.float64()),
        ([bytearray(b"a"), b"b"], pa.binary()),
        ([np.zeros(0), np.zeros(0)], pa.list_(pa.float64())),
        ([np.zeros((0, 4)), np.zeros((0, 4))], RaggedTensorType(pa.float64(), 2)),
        ([np.zeros((1, 4), np.int8), None, np.zeros((3, 4), np.int8)], RaggedTensorType(pa.int8(), 2)),
        (np.array([np.zeros((1, 4)), np.zeros((3, 4))], object), RaggedTensorType(pa.float64(), 2)),
        ([torch.zeros(2, 3), torch.zeros(1, 3)], RaggedTensorType(pa.float32(), 2)),
        (torch.zeros(2, dtype=torch.bfloat16), pa.float32()),
        (pd.Series(pd.arrays.SparseArray([0, 1])), pa.int64()),
        (pd.Series([np.zeros(2), np.ones(2)]), pa.list_(pa.float64(), 2)),
        ([Decimal("1.5"), None], pa.decimal128(2, 1)),
        ([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        ([{"a": 1}, None, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([[{"a": [1.5]}]], pa.list_(pa.struct([("a", pa.list_(pa.float64()))]))),
        ([np.zeros(2), np.ones(2)], pa.list_(pa.float64(), 2)),
        ([np.zeros(2), np.ones(3), None], pa.list_(pa.float64())),
        ([np.zeros((2, 2), np.uint8)], pa.fixed_shape_tensor(pa.uint8(), (2, 2))),
        ([torch.zeros(2), torch.zeros(2)], pa.list_(pa.float32(), 2)),
        ([torch.tensor(1.5), torch.tensor(2.5)], pa.float32()),
        ((1, 2), pa.int64()),
        (torch.zeros(3, 2, requires_grad=True), pa.list_(pa.float32(), 2)),
        (pd.Series(["a", "b"], dtype=object), pa.string()),
        (pd.Series([1, None], dtype="Int32"), pa.int32()),
        (pd.Series([1, 2], index=["columns", "nlevels"]), pa.int64()),
        (pd.array([2**53 + 1, None], dtype="Int64"), pa.int64()),
        (pd.Index([1, None], dtype="Int64"), pa.int64()),
        (pd.Categorical(["a", None]), pa.dictionary(pa.int8(), pa.large_string())),
        (pd.Categorical([None, None]), pa.null()),
        (pd.Series([None], dtype=pd.CategoricalDtype(pd.Index([], dtype="object"))), pa.null()),
        ([pd.array([2**53 + 1, None], dtype="Int64"), None], pa.list_(pa.int64())),
        ([pd.Series(["a", None], dtype="str")], pa.list_(pa.string())),
        (pl.Series([1, 2], dtype=pl.Int16), pa.int16()),
        (pa.chunked_array([[1], [2]]), pa.int64()),
        (pa.chunked_array([], pa.int8()), pa.int8()),
        (range(3), pa.int64()),
    ],
)
def test_what_a_column_may_be(values: Any, type_: pa.DataType) -> None:
    column = column_from(values)
    assert column.type == type_
    assert len(column) == len(values)
    column.validate(full=True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (3, "not an int"),
        ("abc", "not a str"),
        (None, "not None"),
        ({"a": 1}, "not a dict"),
        ({"a", "b"}, "not a set"),
        (pd.DataFrame({"a": [1]}), "not a DataFrame"),
        (pd.MultiIndex.from_product([[1], [2]]), "not a MultiIndex"),
        (np.float64(2), "not a float64"),
        (np.array(2.0), "single value"),
        (np.array([1, 2001], "M8[ps]"), r"does not fit datetime64\[ns\]"),
        (np.array([1], "m8[M]"), "months or years"),
        (np.array([1], "m8"), "no unit"),
        (np.array([2**40], "M8[D]"), "further away"),
        (pd.Series(pd.period_range("2020", periods=2, freq="M")), r"only pandas knows its dtype period\[M\]"),
        (pd.Series(pd.interval_range(0, 2)), "only pandas knows its dtype interval"),
        (pd.cut(pd.Series([1, 2, 3]), 2), "only pandas knows its dtype interval"),
    ],
)
def test_what_a_column_may_not_be(values: Any, words: str) -> None:
    with pytest.raises(ConversionError, match=words):
        column_from(values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros(2, complex), "complex128 has no Arrow type"),
        ([1, "a"], "do not fit one Arrow type"),
        ([object()], "do not fit one Arrow type"),
        ([2**70], "do not fit one Arrow type"),
        ([2**60, 0.5], "do not fit one Arrow type"),
        (["\ud800"], "cannot be encoded as UTF-8"),
        ([np.zeros(2), np.zeros((2, 2))], r"different numbers of axes \(\(2,\), \(2, 2\)\)"),
        ([np.zeros(2), 3], "mixes arrays and integers"),
        (["a", b"b"], "mixes bytes and strings"),
        ([b"b", "a"], "mixes bytes and strings"),
        ([["a"], [b"b"]], "mixes bytes and strings"),
        ([1, True], "mixes booleans and integers"),
        ([np.bool_(True), np.int8(1)], "mixes booleans and integers"),
        ([np.int8(1), np.str_("a")], "mixes integers and strings"),
        ([np.array([1]), np.array(["a"])], "mixes integers and strings"),
        ([np.array([True]), np.array([5])], "dtypes that do not fit one Arrow type"),
        ([np.int64(2**60 + 1), np.float64(0.5)], "would round"),
        ([np.array([2**60 + 1]), np.array([0.5])], "would round"),
        ([np.uint64(2**63 + 1), np.int64(-1)], "larger than 64 bits with a sign"),
        ([np.array([2**63 + 1], np.uint64), np.array([-1])], "larger than 64 bits with a sign"),
        ([Decimal("1.5"), 0.1], "mixes decimals and floats"),
        ([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)], "mixes dates and datetimes"),
        ([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], "time zone"),
        ([dt.time(1, tzinfo=dt.UTC)], "time zone"),
        ([np.datetime64(1, "ns"), np.datetime64("9999-01-01", "s")], r"does not fit datetime64\[ns\]"),
        ([pd.Timestamp(1, unit="ns"), dt.datetime(9999, 1, 1)], r"does not fit datetime64\[ns\]"),
        ([{1: 2}], "keys of a dict are strings"),
        (pd.Series(["a", b"b"], dtype=object), "mixes bytes and strings"),
        (torch.zeros(2, dtype=torch.complex64), "complex64 has no Arrow type"),
        ([{"a": 1}, {"a": "x"}], "key 'a': its values do not fit"),
    ],
)
def test_values_that_no_arrow_type_holds_are_objects_and_it_is_known_why(values: Any, words: str) -> None:
    column = column_from(values)
    assert is_objects(column.type) and len(column) == len(values)
    for value, before in zip(column.to_pylist(), values, strict=True):
        same = value is before or np.array_equal(value, before)
        assert same and (type(value) is type(before) or not isinstance(values, list))
    if isinstance(values, list):
        assert re.search(words, why_objects(values))


# ---------------------------------------------------------------- batches

TWO = {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize(
    "result",
    [
        TWO,
        pd.DataFrame(TWO, index=[7, 8]),
        pl.DataFrame(TWO),
        pa.table(TWO),
        pa.concat_tables([pa.table(TWO).slice(0, 1), pa.table(TWO).slice(1)]),
        pa.RecordBatch.from_pydict(TWO),
    ],
    ids=lambda result: f"{type(result).__module__.partition('.')[0]}.{type(result).__name__}",
)
def test_what_a_batch_may_be(result: Any) -> None:
    batch = from_result(result)
    assert batch.to_pydict() == TWO
    assert batch.schema.metadata is None


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, r"returned None \(is a `return` missing\?\)"),
        ({}, "without columns"),
        (3, "returned an int; a batch is a dict of columns"),
        (np.zeros(3), r"returned an ndarray.*return \{\"prediction\": values\}"),
        (pd.Series([1]), "Name the column"),
        ([1, 2], "Name the column"),
        ({"a": [1, 2], "b": [1]}, r"different lengths \(a: 2, b: 1\)"),
        ({"a": [1], 3: [1]}, "column names are strings, but one is 3"),
        ({"a": 7}, "column 'a'.*not an int"),
        (pa.table([[1], [2]], names=["a", "a"]), "two of its columns are named 'a'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "a"),
    ],
)
def test_what_a_batch_may_not_be(result: Any, words: str) -> None:
    with pytest.raises(ConversionError, match=words):
        from_result(result)


def test_rows_lacking_a_key_have_null_there() -> None:
    batch = from_rows([{"a": 1}, {"b": "x"}, {}])
    assert list(rows_of(batch)) == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}]
    assert from_rows([{}, {}]).num_rows == 2


def test_columns_of_one_array_share_its_rows() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    batch = from_columns({"image": image, "label": ["a", "b"]})
    rows = list(rows_of(batch))
    assert [row["label"] for row in rows] == ["a", "b"]
    assert np.array_equal(rows[1]["image"], image[1])
    assert not rows[0]["image"].flags.writeable
