"""The form of a column that may hold nulls: one dtype in every batch, and no integer that is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.core.arrow.batch import schema_bytes, schema_from
from headrace.core.arrow.batch_formats import rows_of, to_format, to_frame
from headrace.core.arrow.forms import FLOAT, OBJECT, forms_in, mark_of, marked, without_marks
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.values import from_result
from headrace.errors import BadInput
from headrace.plan.expressions import valid_fields

BIG = 2**53 + 1


def batch(*values: Any, type_: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, type_)})


@pytest.mark.parametrize("format_", ["numpy", "pandas"])
@pytest.mark.parametrize(
    ("form", "type_", "values", "kind"),
    [
        (FLOAT, pa.int64(), [1, 2, None], "f8"),
        (FLOAT, pa.int8(), [1, 2, None], "f8"),
        (OBJECT, pa.int64(), [BIG, -BIG, None], "O"),
        (OBJECT, pa.uint64(), [2**64 - 1, 1, None], "O"),
        (OBJECT, pa.bool_(), [True, False, None], "O"),
    ],
)
def test_the_dtype_is_the_same_with_and_without_nulls(
    form: str, type_: pa.DataType, values: list[Any], kind: str, format_: Any
) -> None:
    if format_ == "pandas":
        pytest.importorskip("pandas")
    for some in (values[:2], values, values[2:], []):
        whole = marked(batch(*some, type_=type_), {"x": form})
        column = to_format(whole, format_)["x"]
        assert column.dtype == np.dtype(kind)
        seen = [None if value is None or value != value else value for value in column.tolist()]
        assert seen == some


def test_booleans_are_numpys_so_that_not_is_not() -> None:
    flags = to_format(marked(batch(True, False), {"x": OBJECT}), "numpy")["x"]
    assert (~flags).tolist() == [False, True]


@pytest.mark.parametrize("form", [None, FLOAT])
@pytest.mark.parametrize("value", [BIG, -BIG, 2**63 - 1])
@pytest.mark.parametrize("format_", ["numpy", "pandas"])
def test_an_integer_that_float64_would_round_is_refused(form: str | None, value: int, format_: Any) -> None:
    given = batch(7, value, None)
    given = marked(given, {"x": form}) if form else given
    with pytest.raises(BadInput, match=rf"'x'.*{value} \(row 1.*pyarrow"):
        to_format(given, format_)
    assert to_format(given, "pyarrow")["x"].to_pylist() == [7, value, None]


def test_what_float64_holds_is_not_refused() -> None:
    assert to_format(batch(2**60, None, -(2**62)), "numpy")["x"][[0, 2]].tolist() == [2.0**60, -(2.0**62)]


def test_what_lies_under_a_null_is_nobodys_value() -> None:
    data = pa.py_buffer(np.array([1, BIG], np.int64))
    column = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), data])
    given = pa.RecordBatch.from_arrays([column], names=["x"])
    assert to_format(given, "numpy")["x"][0] == 1.0
    assert forms_in(given) == {"x": FLOAT}


def test_marks_are_no_part_of_what_users_and_files_see() -> None:
    given = marked(batch(1, None), {"x": FLOAT})
    assert given.schema.field("x").metadata
    assert to_format(given, "pyarrow").schema.field("x").metadata is None
    assert without_marks(given).schema.field("x").metadata is None
    assert schema_from(schema_bytes(given.schema)).field("x").metadata is None
    own = pa.schema([pa.field("x", pa.int64(), metadata={"unit": "km"})])
    mine = marked(pa.RecordBatch.from_arrays([pa.array([1])], schema=own), {})
    assert without_marks(mine).schema.field("x").metadata == {b"unit": b"km"}


@pytest.mark.parametrize("format_", ["numpy", "pandas", "pyarrow"])
@pytest.mark.parametrize("values", [[1, 2], [1, None]])
def test_a_column_that_comes_back_as_it_went_keeps_type_and_mark(format_: Any, values: list[Any]) -> None:
    given = marked(pa.record_batch({"x": pa.array(values, pa.int16())}), {"x": FLOAT})
    view = to_format(given, format_)
    handed = InputView(given, view)
    back = handed.marked(from_result(view, handed))
    assert back.column("x").equals(given.column("x"))
    assert mark_of(back.schema.field("x")) == FLOAT


def test_a_column_of_ones_own_has_no_mark() -> None:
    given = marked(batch(1, 2), {"x": FLOAT})
    handed = InputView(given, to_format(given, "numpy"))
    back = handed.marked(from_result({"x": np.array([1, 2])}, handed))
    assert back.schema.field("x").type == pa.int64() and mark_of(back.schema.field("x")) is None


def test_what_a_filter_says_of_nulls() -> None:
    import pyarrow.compute as pc

    a, b = pc.field("a"), pc.field("b")
    assert valid_fields(a.is_valid()) == {"a"}
    assert valid_fields(a.is_valid() & b.is_valid() & (b > 2)) == {"a", "b"}
    assert valid_fields((b == "x) and is_valid(a") & (b > "y")) == set()
    assert valid_fields((a.is_valid() | (b > 1)) & b.is_valid()) == {"b"}
    assert valid_fields(~(a.is_valid() & b.is_valid())) == set()
    assert valid_fields(pc.invert(a.is_valid())) == set()
    assert valid_fields((b == "' and is_valid(a) and '") | (b == 1)) == set()


# ---------------------------------------------------------------- within lists and structs

ODD = 2**53 + 1  # which float64 does not have
NESTED = [
    pa.array([[ODD, None], [1, 2]], pa.list_(pa.int64(), 2)),
    pa.array([[ODD, None], None], pa.list_(pa.int64(), 2)),
    pa.array([[ODD, None], [1, 2]]),
    pa.array([[ODD, None], [1, 2]], pa.list_view(pa.int64())),
    pa.array([[[ODD, None]], [[1]]]),
    pa.array([{"a": ODD}, {"a": None}]),
    pa.array([[{"a": ODD}, {"a": None}], []]),
    pa.array([[True, None], [True, False]], pa.list_(pa.bool_(), 2)),
    pa.array([[("k", ODD), ("l", None)], []], pa.map_(pa.string(), pa.int64())),
    pa.array([2**64 - 1, None], pa.uint64()),
]


def plain(value: Any) -> Any:
    return [plain(each) for each in value] if isinstance(value, (list, np.ndarray)) else value


@pytest.mark.parametrize("column", NESTED, ids=lambda column: str(column.type))
def test_no_integer_or_truth_value_beside_a_null_changes_in_lists_structs_and_frames(
    column: pa.Array,
) -> None:
    batch = pa.record_batch({"x": column})
    wanted = column.to_pylist()
    assert plain(list(to_frame(batch)["x"])) == wanted
    assert plain(list(to_frame(pa.Table.from_batches([batch, batch]))["x"])) == wanted + wanted
    assert plain([row["x"] for row in rows_of(batch)]) == wanted
    if not pa.types.is_integer(column.type):  # a column of these is refused: see above
        assert plain(to_format(batch, "numpy")["x"]) == wanted
        assert plain(to_format(batch, "numpy", dense=True)["x"]) == wanted


@pytest.mark.parametrize("column", NESTED[:-1], ids=lambda column: str(column.type))
def test_a_frame_that_comes_back_as_it_went_has_the_values_that_it_had(column: pa.Array) -> None:
    handed = InputView(pa.record_batch({"x": column}))
    (again,) = from_result(to_format(handed.batch, "pandas"), handed).columns
    assert again.to_pylist() == column.to_pylist()
