"""One form for values, whatever they are stored as."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.arrow.plain import columns_within, holds, kind_of, plain, plain_type
from headrace.core.arrow.same import same

INTS = st.lists(st.none() | st.integers(-5, 5), max_size=3)


def dictionary(values: list[Any], type_: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int16()), pa.array(values, type_))


def runs(values: list[Any], type_: pa.DataType) -> pa.Array:
    ends = pa.array(range(1, len(values) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, type_))


ODD: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "list views": (pa.list_view(pa.int64()), INTS),
    "large list views": (pa.large_list_view(pa.int8()), INTS),
    "views of texts": (pa.string_view(), st.text(max_size=20)),
    "views of bytes": (pa.binary_view(), st.binary(max_size=20)),
    "a dictionary of lists": (lambda values: dictionary(values, pa.list_(pa.int64())), INTS),
    "a dictionary of views": (lambda values: dictionary(values, pa.string_view()), st.text(max_size=20)),
    "runs": (lambda values: runs(values, pa.string()), st.text(max_size=3)),
    "runs of list views": (lambda values: runs(values, pa.list_view(pa.int64())), INTS),
    "flags of a byte": (
        lambda values: pa.ExtensionArray.from_storage(pa.bool8(), pa.array(values, pa.bool_()).cast(pa.int8())),
        st.booleans(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
@given(st.data())
def test_plain_values_are_those_of_the_column(kind: str, data: st.DataObject) -> None:
    make, each = ODD[kind]
    values = data.draw(st.lists(st.none() | each, max_size=6))
    column = make(values) if callable(make) else pa.array(values, make)
    start = data.draw(st.integers(0, len(values)))
    part, wanted = column.slice(start), values[start:]
    made = plain(part)
    assert made.to_pylist() == wanted and made.type == plain_type(column.type)
    assert plain(made) is made and kind_of(made.type) == kind_of(column.type)
    assert same(part, made).all()


@given(st.lists(st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)), max_size=6), st.data())
def test_columns_within_are_those_of_the_rows(
    values: list[dict[str, int] | None], data: st.DataObject
) -> None:
    column = pa.array(
        [None if value is None else list(value.items()) for value in values], pa.map_("string", "int8")
    )
    start = data.draw(st.integers(0, len(values)))
    keys, items = columns_within(column.slice(start))
    found = [pair for value in values[start:] if value is not None for pair in value.items()]
    assert list(zip(keys.to_pylist(), items.to_pylist(), strict=True)) == found


def test_types_are_looked_through() -> None:
    deep = pa.struct([("x", pa.map_(pa.string(), pa.run_end_encoded(pa.int32(), pa.list_(pa.date32()))))])
    assert holds(deep, pa.types.is_date) and not holds(deep, pa.types.is_floating)
