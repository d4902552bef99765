"""The output schema: settled once, then kept; what does not fit names its maker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.batch import schema_bytes, schema_from
from millrace.errors import OutputSchemaChanged
from millrace.run.schemas import conform, is_complete, lossless, merge

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
    ],
)
def test_casts_that_lose_nothing(column: pa.Array, target: pa.DataType) -> None:
    settled = schema(a=target)
    made = conform(batch(a=column), settled, "map_batches(f)")
    assert made.schema == settled
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
    ],
)
def test_casts_that_would_lose_something(column: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(OutputSchemaChanged) as caught:
        conform(batch(a=column), schema(a=target), "map_batches(f)")
    text = str(caught.value)
    assert "map_batches(f)" in text and "'a'" in text and str(target) in text and "\n" not in text


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
