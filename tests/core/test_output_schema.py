"""The output schema: settled once, then kept; what does not fit names its maker."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.arrow.batch import schema_bytes, schema_from
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.arrow.lossless import lossless
from headrace.core.arrow.output_schema import conform, is_complete, merge
from headrace.core.arrow.values import column_from
from headrace.errors import OutputSchemaChanged

NULL, INT, FLOAT, TEXT = pa.null(), pa.int64(), pa.float64(), pa.string()


def schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema(list(fields.items()))


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def merged(*schemas: pa.Schema) -> tuple[pa.Schema, bool]:
    known, complete = None, False
    for each in schemas:
        known, complete = merge(known, schema_bytes(each))
    assert known is not None
    return schema_from(known), complete


def test_the_first_types_count_and_nulls_are_filled() -> None:
    assert merged(schema(a=INT)) == (schema(a=INT), True)
    assert merged(schema(a=NULL, b=INT)) == (schema(a=NULL, b=INT), False)
    assert merged(schema(a=NULL, b=INT), schema(a=TEXT, b=FLOAT)) == (schema(a=TEXT, b=INT), True)
    assert merged(schema(a=NULL), schema(b=INT)) == (schema(a=NULL), False)
    assert merged(schema(a=NULL), schema(a=NULL), schema(a=INT)) == (schema(a=INT), True)


@given(st.lists(st.sampled_from([NULL, INT, FLOAT, TEXT]), min_size=1, max_size=5))
def test_a_column_gets_the_first_type_that_comes(types: list[pa.DataType]) -> None:
    found, complete = merged(*(schema(a=type_) for type_ in types))
    known = [type_ for type_ in types if not type_.equals(NULL)]
    assert found.field("a").type == (known[0] if known else NULL)
    assert complete == is_complete(found) == bool(known)


@pytest.mark.parametrize(
    ("column", "target"),
    [
        (pa.array([1, 2]), FLOAT),
        (pa.array([1.0, 2.0]), INT),
        (pa.array([1.0, None]), INT),
        (pa.nulls(2), TEXT),
        (pa.array(["a", "b"]), pa.large_string()),
        (pa.array([1, 2], pa.int32()), INT),
        (pa.array([1, 2]), pa.int8()),
        (pa.array(["a", "a"]).dictionary_encode(), TEXT),
        (pa.array(["a", "a"]), pa.dictionary(pa.int32(), TEXT)),
        (pa.array([[1], [2, 3]]), pa.list_(FLOAT)),
        (pa.array([[1, 2]] * 2), pa.list_(INT, 2)),
        (pa.array([{"x": 1}] * 2), pa.struct([("x", FLOAT)])),
        (pa.array([None, None], pa.list_(NULL)), pa.list_(INT)),
        (pa.array([[], [None]], pa.list_(NULL)), pa.list_(pa.struct([("x", INT)]))),
        (pa.array([{"x": None}]), pa.struct([("x", pa.list_(TEXT))])),
        (pa.array([{"x": []}], pa.struct([("x", pa.list_(NULL))])), pa.struct([("x", pa.list_(TEXT))])),
        (pa.array([[("k", None)]], pa.map_(TEXT, NULL)), pa.map_(TEXT, INT)),
        (pa.array([[("k", 1)]], pa.map_(TEXT, INT)), pa.map_(TEXT, pa.int8())),
        (pa.array([0.5, None, float("inf")]), pa.float32()),
        (pa.array([[0.5]]), pa.list_(pa.float32())),
        (pa.array([Decimal("0.5")]), FLOAT),
        (pa.array([Decimal("1.50")]), pa.decimal128(10, 1)),
        (pa.array([0]), pa.decimal128(21, 2)),
        (pa.array([0.25]), pa.decimal128(10, 2)),
        (pa.array([7]), pa.float16()),
        (pa.array([dt.date(2020, 1, 1)]), pa.timestamp("s")),
        (pa.array([dt.datetime(2020, 1, 1)]), pa.timestamp("s")),
        (pa.array(["a", "b"]).dictionary_encode(), pa.dictionary(pa.int8(), TEXT)),
        (column_from(np.ones((2, 2, 3), np.float32)), pa.fixed_shape_tensor(FLOAT, (2, 3))),
        (pa.nulls(2), RaggedTensorType(FLOAT, 2)),
    ],
)
def test_casts_that_lose_nothing(column: pa.Array, target: pa.DataType) -> None:
    settled = schema(a=target)
    made = conform(batch(a=column), settled, "map_batches(f)")
    assert made.schema == settled
    if not pa.types.is_date(column.type):  # a date and its midnight are not equal in Python
        assert made.column(0).to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    ("column", "target"),
    [
        (pa.array([1.5]), INT),
        (pa.array([300]), pa.int8()),
        (pa.array([2**60 + 1]), FLOAT),
        (pa.array(["1"]), INT),
        (pa.array([1]), TEXT),
        (pa.array([True]), INT),
        (pa.array([1]), pa.bool_()),
        (pa.array([b"a"]), TEXT),
        (pa.array([[1, 2, 3]]), pa.list_(INT, 2)),
        (pa.array([[1.5]]), pa.list_(INT)),
        (pa.array([{"y": 1}]), pa.struct([("x", INT)])),
        (pa.array([1]), pa.timestamp("s")),
        (pa.array([[1]]), INT),
        (pa.array([1e300]), pa.float32()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([[0.5, 0.1]]), pa.list_(pa.float32())),
        (pa.array([{"x": 0.1}]), pa.struct([("x", pa.float32())])),
        (pa.array([[("k", 0.1)]], pa.map_(TEXT, FLOAT)), pa.map_(TEXT, pa.float32())),
        (pa.array([0.1]).dictionary_encode(), pa.float32()),
        (pa.array([2**24 + 1]), pa.float32()),
        (pa.array([Decimal("0.12345678901234567890")]), FLOAT),
        (pa.array([0.125]), pa.decimal128(10, 2)),
        (pa.array([dt.datetime(2020, 1, 1, 12)]), pa.date32()),
        (pa.array([dt.datetime(2020, 1, 1, 12)]), pa.date64()),
        (pa.array([dt.datetime(2020, 1, 1)]), pa.timestamp("us", "UTC")),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.date32()),
        (pa.array([dt.date(2020, 1, 1)]), pa.timestamp("s", "UTC")),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1], pa.duration("ns")), pa.duration("us")),
        (pa.array([1], pa.time64("us")), pa.time32("s")),
        (pa.array([[("k", 1)]], pa.map_(TEXT, INT)), pa.list_(pa.struct([("key", TEXT), ("value", INT)]))),
    ],
)
def test_casts_that_would_lose_something(column: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(OutputSchemaChanged) as caught:
        conform(batch(a=column), schema(a=target), "map_batches(f)")
    text = str(caught.value)
    assert "map_batches(f)" in text and "'a'" in text and str(target) in text and "\n" not in text


def test_tensors_of_one_shape_fit_ragged_ones_and_the_other_way_round_if_all_have_that_shape() -> None:
    arrays = [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)]
    for ragged in (False, True):
        column = column_from(arrays, ragged=ragged)
        for target in (RaggedTensorType(FLOAT, 2), pa.fixed_shape_tensor(FLOAT, (2, 3))):
            made = conform(batch(a=column), schema(a=target), "f").column(0)
            assert made.type == target
            assert [each.tolist() for each in to_numpy(made)] == [each.tolist() for each in arrays]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (pa.fixed_shape_tensor(FLOAT, (3, 2)), r"shape \(3, 2\) of double.*shape \(2, 3\) of double"),
        (RaggedTensorType(FLOAT, 3), r"3 axes of double.*shape \(2, 3\) of double"),
        (RaggedTensorType(pa.float32(), 2), "would be rounded"),
    ],
)
def test_tensors_that_do_not_fit(target: pa.DataType, words: str) -> None:
    with pytest.raises(OutputSchemaChanged, match=f"column 'a'.*{words}"):
        conform(batch(a=column_from(np.full((2, 2, 3), 0.1))), schema(a=target), "f")


@pytest.mark.parametrize(
    ("first", "later", "words"),
    [
        (np.ones((2, 1, 4)), np.ones((2, 3, 4)), r"RaggedTensorType\(pyarrow.float64\(\), 2\)"),
        (
            np.ones((2, 2), np.int8),
            [np.ones(2, np.int8), np.ones(3, np.int8)],
            r"pyarrow.list_\(pyarrow.int8\(\)\)",
        ),
        (np.ones((2, 2), bool), np.ones((2, 3), bool), r"pyarrow.list_\(pyarrow.bool_\(\)\)"),
    ],
)
def test_other_shapes_than_the_first_rows_had_are_explained(first: Any, later: Any, words: str) -> None:
    settled = schema(a=column_from(first).type)
    with pytest.raises(OutputSchemaChanged, match=rf"{words}.*numpy.empty\(n, object\)"):
        conform(batch(a=column_from(later)), settled, "f", writes=True)
    with pytest.raises(OutputSchemaChanged, match=r"array of objects from map_batches"):
        conform(batch(a=column_from(later)), settled, "f")


def test_columns_are_put_in_order() -> None:
    made = conform(batch(b=pa.array([1]), a=pa.array([2])), schema(a=INT, b=INT), "f")
    assert made.to_pydict() == {"a": [2], "b": [1]}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [1]}, "b is missing"),
        ({"a": [1], "b": [1], "c": [1]}, "c is new"),
        ({"a": [1], "bb": [1]}, "b is missing and bb is new. Did you mean 'bb'?"),
    ],
)
def test_other_columns(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(OutputSchemaChanged) as caught:
        conform(pa.RecordBatch.from_pydict(columns), schema(a=INT, b=INT), "map_batches(f)")
    assert words in str(caught.value) and "map_batches(f)" in str(caught.value)


def test_a_column_that_is_there_twice() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(OutputSchemaChanged, match="twice"):
        conform(twice, schema(a=INT), "f")


def test_nulls_where_none_are_allowed() -> None:
    settled = pa.schema([pa.field("a", INT, nullable=False)])
    assert conform(batch(a=pa.array([1])), settled, "f").schema == settled
    for column in (pa.array([1, None]), pa.array([1.0, None]), pa.nulls(1)):
        with pytest.raises(OutputSchemaChanged, match="nulls"):
            conform(batch(a=column), settled, "f")


@pytest.mark.parametrize("type_", [INT, TEXT, FLOAT, pa.list_(INT), pa.struct([("x", INT)]), pa.bool_()])
def test_a_type_fits_itself_or_is_never_asked(type_: pa.DataType) -> None:
    column = pa.array([None], type_)
    assert conform(batch(a=column), schema(a=type_), "f").column(0) is not None
    assert lossless(NULL, type_)


def test_zones_keep_the_instant_and_nan_is_nan() -> None:
    column = pa.array([0], pa.timestamp("us", "Europe/Berlin"))
    made = conform(batch(a=column), schema(a=pa.timestamp("us", "UTC")), "f").column(0)
    assert made.cast(INT).to_pylist() == [0]
    for target, values in [
        (pa.float32(), pa.array([float("nan"), 1])),
        (pa.list_(pa.float32()), pa.array([[float("nan")], None])),
    ]:
        assert conform(batch(a=values), schema(a=target), "f").schema.field("a").type == target


OPEN = [
    pa.list_(NULL),
    pa.large_list(NULL),
    pa.map_(TEXT, NULL),
    pa.struct([("x", NULL), ("y", INT)]),
    pa.list_(pa.struct([("x", pa.list_(NULL))])),
]
CLOSED = [
    pa.list_(INT),
    pa.large_list(INT),
    pa.map_(TEXT, INT),
    pa.struct([("x", TEXT), ("y", INT)]),
    pa.list_(pa.struct([("x", pa.list_(TEXT))])),
]


@pytest.mark.parametrize(("open_", "closed"), list(zip(OPEN, CLOSED, strict=True)), ids=str)
def test_a_type_that_is_open_deep_inside_waits(open_: pa.DataType, closed: pa.DataType) -> None:
    assert not is_complete(schema(a=open_)) and is_complete(schema(a=closed))
    assert merged(schema(a=open_), schema(a=closed)) == (schema(a=closed), True)
    assert merged(schema(a=closed), schema(a=open_)) == (schema(a=closed), True)
    assert merged(schema(a=open_), schema(a=TEXT)) == (schema(a=open_), False)
    column = pa.array([None], open_)
    assert conform(batch(a=column), schema(a=closed), "f").schema == schema(a=closed)


def test_the_message_speaks_of_schema_only_where_the_verb_has_it() -> None:
    for writes in (False, True):
        with pytest.raises(OutputSchemaChanged) as caught:
            column = pa.array([1.0, 2.0, 3.0, 0.5, 4.0])
            where = "a.csv, row {}".format
            conform(batch(a=column), schema(a=INT), "map(f)", writes=writes, where=where)
        text = str(caught.value)
        assert ("schema=pyarrow.schema({'a': 'double'})" in text) == ("on_change='restart'" in text) == writes
        assert "one type of 'a' for every batch" in text and "map(f)" in text and "double" in text
        assert "It was working on a.csv, row 3." in text


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ((3,), "pyarrow.list_(pyarrow.float64(), 3)"),
        ((2, 3), "pyarrow.fixed_shape_tensor(pyarrow.float64(), (2, 3))"),
    ],
)
def test_another_dtype_than_that_of_the_first_rows_is_explained(
    shape: tuple[int, ...], named: str, writes: bool
) -> None:
    first, later = (pa.record_batch({"x": column_from(np.full((2, *shape), 0.1, d))}) for d in ("f4", "f8"))
    with pytest.raises(OutputSchemaChanged) as told:
        conform(later, first.schema, "map_batches(f)", writes=writes)
    assert "array.astype('float64')" in str(told.value) and "shapes" not in str(told.value)
    assert (named in str(told.value)) == writes
    whole = pa.record_batch({"x": column_from(np.full((2, *shape), 2**53 + 1))})
    with pytest.raises(OutputSchemaChanged, match=r"one dtype") as told:
        conform(whole, later.schema, "map_batches(f)", writes=writes)
    assert "schema=" not in str(told.value)


@pytest.mark.parametrize(
    ("settled", "later"),
    [
        (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.float64())])),
        (pa.list_(pa.int32()), pa.list_(pa.float64())),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_the_schema_that_a_message_names_can_be_used(settled: pa.DataType, later: pa.DataType) -> None:
    value = {"x": 0.5} if pa.types.is_struct(later) else [0.5] if pa.types.is_list(later) else 1
    found = batch(a=pa.array([value], later), b=pa.array([b"x"], pa.binary(1)))
    with pytest.raises(OutputSchemaChanged) as told:
        conform(found, schema(a=settled, b=pa.binary(1)), "map(f)", writes=True)
    (named,) = re.findall(r"with schema=(pyarrow\.schema\(.*?\)) of the write verb", str(told.value))
    wider = eval(named, {"pyarrow": pa})
    assert conform(found, wider, "map(f)", writes=True).schema.field("a").type.equals(later)
