"""What a step sees of a ``pyarrow.RecordBatch``: arrays, a DataFrame, a Table, or rows of plain Python values.

Much of pyarrow imports pandas in silence where it is installed (``Array.to_numpy``, for one), which costs
0.35 s in every process. So conversions here go by buffers. The way back is in ``core.arrow.values``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

from headrace.core.arrow import forms
from headrace.core.arrow.batch import one_array, with_present_values
from headrace.core.arrow.buffers import NUMPY_OF, bits, present, raw
from headrace.core.arrow.forms import RaggedTensorType, in_order, is_list
from headrace.core.arrow.objects import is_objects, objects_of, refuse_objects
from headrace.core.arrow.plain import (
    columns_within,
    holds,
    is_encoded,
    is_list_view,
    is_nested,
    plain,
    types_within,
    unwrapped,
)
from headrace.errors import BadInput

BatchFormat = Literal["numpy", "pandas", "pyarrow"]


def to_format(
    batch: pa.RecordBatch, batch_format: BatchFormat, *, formed: bool = True, dense: bool = False
) -> Any:
    """View ``batch`` as a dict of arrays, a DataFrame or a Table.

    ``formed``: columns that may hold nulls come in their form, see ``arrow.forms``, and no integer is rounded.
    ``dense``: among arrays, lists that are of one length in this batch are one array; embeddings and token ids in
    Parquet files mostly are lists.
    """
    if batch_format == "pyarrow":
        refuse_objects(batch, BadInput)
        return pa.Table.from_batches([forms.without_marks(batch)])
    if batch_format == "pandas":
        return to_frame(batch, formed=formed)
    made = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        array = _of_one_length(column) if dense and is_list(field.type) else None
        if array is None:
            array = _formed(field, column) if formed else to_numpy(column)
        made[field.name] = array
    return made


def _formed(field: pa.Field, column: pa.Array) -> np.ndarray[Any, Any]:
    """View a column in the form that it has in every batch."""
    form = forms.mark_of(field)
    column = unwrapped(column) if is_encoded(column.type) or isinstance(column.type, pa.Bool8Type) else column
    if form == forms.OBJECT:
        return _locked(_exact_objects(column))
    if (column.null_count or form == forms.FLOAT) and forms.is_wide(column.type):
        forms.checked(field.name, column)
    array = to_numpy(column)
    if form == forms.FLOAT and array.dtype.kind in "iu":
        return _locked(array.astype(np.float64))
    return array


def _exact_objects(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return integers as Python's, and truth values as numpy's, whose ``~`` is what it says; None where null."""
    values = np.empty(len(column), object)
    values[:] = column.to_pylist()
    if pa.types.is_boolean(column.type):
        values[:] = [None if value is None else np.bool_(value) for value in values]
    return values


def to_frame(table: pa.RecordBatch | pa.Table, *, formed: bool = False) -> Any:
    """Make a DataFrame. A tensor is an array in its cell, of the shape that it has; pandas has nothing closer.

    Integers beside nulls that pandas would round are objects. ``formed`` as for ``to_format``, of a batch.
    """
    ours: dict[int, np.ndarray[Any, Any]] = {}
    for i, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        coded = pa.types.is_dictionary(field.type)
        in_form = not coded and forms.mark_of(field) in (forms.FLOAT, forms.OBJECT)
        if formed and (in_form or (column.null_count and forms.is_wide(field.type))):
            ours[i] = _formed(field, column).copy()
        elif (
            is_tensor(field.type)
            or is_objects(field.type)
            or (rounds(column) and not coded)  # categories are exact
            or _pandas_lacks(field.type)
        ):
            ours[i] = np.empty(len(column), object)
            for at, row in enumerate(_unrounded(_one(column))):
                ours[i][at] = row
        elif coded:
            table = table.set_column(i, field, with_present_values(_one(column)))
        elif isinstance(field.type, pa.Bool8Type):  # of which pandas would get the bytes
            flags = plain(_one(column))
            table = table.set_column(i, field.with_type(flags.type), flags)
    frame = _frame(table.select([i for i in range(table.num_columns) if i not in ours]) if ours else table)
    for i, cells in ours.items():
        frame.insert(i, table.schema.names[i], cells)
    return frame


def _frame(table: pa.RecordBatch | pa.Table) -> Any:
    try:
        return table.to_pandas()
    except (pa.ArrowException, OverflowError, ValueError):
        for field, column in zip(table.schema, table.columns, strict=True):
            try:
                column.to_pandas()
            except (pa.ArrowException, OverflowError, ValueError) as error:
                raise _unseen(field.name, field.type, "pandas", error) from error
        raise


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return one_array(column) if isinstance(column, pa.ChunkedArray) else column


def _pandas_lacks(type_: pa.DataType) -> bool:
    """Say whether pyarrow makes no column of pandas of this type, or a wrong one.

    Categories are plain values; and of a list view that is a slice and has nulls, it shows other rows as null.
    """
    if pa.types.is_union(type_) or is_list_view(type_) or type_ == pa.time64("ns"):
        return True
    if pa.types.is_dictionary(type_):
        return is_encoded(type_.value_type) or is_nested(type_.value_type)
    inner = types_within(type_) if pa.types.is_nested(type_) else []
    return any(isinstance(each, pa.BaseExtensionType) or _pandas_lacks(each) for each in inner)


def rounds(column: pa.Array | pa.ChunkedArray) -> bool:
    """Say whether the column has, at any depth, integers beside nulls that float64 would round."""
    if not holds(column.type, forms.is_wide):
        return False
    column = plain(_one(column))
    if forms.is_wide(column.type):
        return bool(column.null_count) and forms.beyond(column)
    return any(map(rounds, columns_within(column)))


def _unrounded(column: pa.Array) -> np.ndarray[Any, Any]:
    """View a column as ``to_numpy`` does, but integers beside nulls as objects if float64 would round one."""
    column = unwrapped(column) if is_encoded(column.type) else column
    if forms.is_wide(column.type) and rounds(column):
        return _locked(_exact_objects(column))
    return to_numpy(column)


def to_numpy(column: pa.Array) -> np.ndarray[Any, Any]:
    """View a column as a read-only array, without a copy where nothing is null.

    Integers with nulls become float64 with NaN (for the form of a whole column see ``to_format``); booleans with
    nulls, strings, binary, decimals and nested values become objects; timestamps, dates and durations become
    datetime64 / timedelta64 with NaT;
    fixed-size lists and tensors of numbers become arrays of shape (n, k…), and n objects, which are arrays or None,
    where the shapes differ or one is null. Within lists, integers beside nulls are objects if float64 would round
    one.
    """
    return _locked(_to_numpy(column))


def _locked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    base: Any = array
    while isinstance(base, np.ndarray):
        base.flags.writeable = False  # what it views too: so `layout.is_fixed` knows it for untouchable
        base = base.base
    return array


def _to_numpy(column: pa.Array) -> np.ndarray[Any, Any]:
    type_ = column.type
    if isinstance(column, pa.FixedShapeTensorArray):
        column = in_order(column)
        return _rows_of_values(column.storage, column.type.shape)
    if isinstance(type_, RaggedTensorType):
        return _ragged(column)
    if is_objects(type_):
        return objects_of(column)
    if isinstance(type_, pa.BaseExtensionType):
        return _to_numpy(unwrapped(column))
    dtype = NUMPY_OF.get(type_)
    if dtype is not None:
        return _numbers(column, dtype)
    if pa.types.is_boolean(type_) and not column.null_count:
        return bits(column.buffers()[1], column.offset, len(column)) if len(column) else np.zeros(0, np.bool_)
    if pa.types.is_temporal(type_) and not pa.types.is_time(type_) and type_ != pa.month_day_nano_interval():
        return _times(column)
    if pa.types.is_fixed_size_list(type_) and (column.null_count == 0 or is_tensor(type_)):
        return _rows_of_values(column, [type_.list_size])
    inner = unwrapped(column)
    return _objects(column) if inner is column else _to_numpy(inner)


def _rows_of_values(column: pa.Array, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """View fixed-size lists as one array, or as an array for each row if rows are null or hold no numbers."""
    values = _unrounded(column.flatten())  # of the rows that are there
    if not column.null_count:
        rows = np.reshape(values, (len(column), *shape, *values.shape[1:]))
        return rows if values.dtype != object or 0 in shape or is_tensor(column.type) else _objects(column)
    there = present(column)
    rows = np.reshape(values, (int(there.sum()), *shape, *values.shape[1:]))
    made = np.empty(len(column), object)
    for at, row in zip(np.flatnonzero(there), rows, strict=True):
        made[at] = row
    return made


def _numbers(column: pa.Array, dtype: Any) -> np.ndarray[Any, Any]:
    values = raw(column, dtype)
    if column.null_count == 0:
        return values.view()
    values = values.astype(np.float64 if values.dtype.kind in "iu" else values.dtype)
    values[~present(column)] = np.nan
    return values


def _times(column: pa.Array) -> np.ndarray[Any, Any]:
    type_ = column.type
    if pa.types.is_date32(type_):
        result = raw(column, np.int32).astype(np.int64).view("datetime64[D]")
    else:
        unit = "ms" if pa.types.is_date64(type_) else type_.unit
        kind = "timedelta64" if pa.types.is_duration(type_) else "datetime64"
        result = raw(column, np.int64).view(f"{kind}[{unit}]")
    if column.null_count:
        result = result.copy()
        result[~present(column)] = "NaT"
    return result


def _ragged(column: pa.Array) -> np.ndarray[Any, Any]:
    data, shapes = (column.storage.field(i) for i in range(2))
    starts = _to_numpy(data.offsets).tolist()
    values = to_numpy(data.values)
    axes = _to_numpy(shapes)
    if len(axes) and not column.null_count and (axes == axes[0]).all():  # as a model takes them
        return values[starts[0] : starts[-1]].reshape(len(axes), *axes[0])
    arrays = np.empty(len(column), object)
    for i, shape in enumerate(axes):
        if not column.null_count or column[i].is_valid:
            arrays[i] = values[starts[i] : starts[i + 1]].reshape(shape)
    return arrays


def _objects(column: pa.Array) -> np.ndarray[Any, Any]:
    values = np.empty(len(column), object)
    if is_list(column.type):
        for i, item in enumerate(column):
            values[i] = _unrounded(item.values) if item.is_valid else None
    else:
        # One by one: numpy would look into lists of one length.
        for i, value in enumerate(_python_values(column)):
            values[i] = value
    return values


def _of_one_length(column: pa.Array) -> np.ndarray[Any, Any] | None:
    """View lists as an array (n, k…), without a copy; None if they are of several lengths, or hold no numbers.

    None, too, where integers stand beside nulls and a float would round one.
    """
    if not is_list(column.type):
        values = to_numpy(column)
        return None if values.dtype.kind == "O" or rounds(column) else values
    if column.null_count or not len(column):
        return None
    ends = to_numpy(column.offsets)
    lengths = np.diff(ends)
    if not lengths[0] or (lengths != lengths[0]).any():
        return None
    inner = _of_one_length(column.values.slice(int(ends[0]), int(ends[-1] - ends[0])))
    return None if inner is None else np.reshape(inner, (len(column), int(lengths[0]), *inner.shape[1:]))


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict of plain Python values, as ``python_columns`` makes them."""
    yield from rows_from(python_columns(batch), batch.num_rows)


def rows_from(columns: Mapping[str, Sequence[Any]], count: int) -> Iterator[dict[str, Any]]:
    """Return the rows of these columns."""
    if not columns:
        return ({} for _ in range(count))
    return map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True)))


def python_columns(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return each column as a list of plain Python values.

    Tensors, and lists that were made of arrays, come as read-only arrays; times that Python's own types cannot hold,
    as numpy's.
    """
    return {
        field.name: list(to_numpy(column)) if shows_arrays(field) else _named_values(field.name, column)
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }


def _named_values(name: str, column: pa.Array) -> list[Any]:
    try:
        return _python_values(column)
    except (OverflowError, ValueError) as error:
        raise _unseen(name, column.type, "Python", error) from error


def _unseen(name: str, type_: pa.DataType, by: str, error: Exception) -> BadInput:
    return BadInput(
        f"column {name!r} of {type_} has values that {by} cannot show: {str(error).rstrip('.')}. Leave the column "
        "out with drop_columns, or take it as it is with batch_format='pyarrow'."
    )


def _python_values(column: pa.Array) -> list[Any]:
    type_ = column.type
    if is_objects(type_):
        return cast("list[Any]", objects_of(column).tolist())
    if (
        pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time(type_)
    ) and type_.unit == "ns":
        return _nanoseconds(column)
    try:
        return cast("list[Any]", column.to_pylist())
    except (OverflowError, ValueError):
        if not (pa.types.is_timestamp(type_) or pa.types.is_date(type_) or pa.types.is_duration(type_)):
            raise
        times = to_numpy(column)
        return [time if there else None for time, there in zip(times, ~np.isnat(times), strict=True)]


def _nanoseconds(column: pa.Array) -> list[Any]:
    """As Python's own types, which end at microseconds; where these are too coarse, as numpy's: Arrow needs pandas.

    numpy has no time of day: it is what has passed since midnight. And none with a time zone, so those are of pandas.
    """
    type_, there = column.type, present(column)
    times = raw(column, "M8[ns]" if pa.types.is_timestamp(type_) else "m8[ns]")
    if not (times.view(np.int64)[there] % 1000).any():
        zoned = pa.timestamp("us", getattr(type_, "tz", None))
        coarse = {pa.duration("ns"): pa.duration("us"), pa.time64("ns"): pa.time64("us")}.get(type_, zoned)
        return cast("list[Any]", column.cast(coarse).to_pylist())
    if getattr(type_, "tz", None) is not None:
        return cast("list[Any]", column.to_pylist())
    return [time if valid else None for time, valid in zip(times, there, strict=True)]


def shows_arrays(field: pa.Field) -> bool:
    """Say whether rows show a column as arrays: a tensor column, or a list column that was made of arrays."""
    return is_tensor(field.type) or forms.mark_of(field) == forms.ARRAYS


def is_tensor(type_: pa.DataType) -> bool:
    """Say whether a column of this type is handed out as one (n, k…) array of numbers, or as one per row."""
    if isinstance(type_, (pa.FixedShapeTensorType, RaggedTensorType)):
        return True
    while pa.types.is_fixed_size_list(type_):
        type_ = type_.value_type
        if type_ in NUMPY_OF or pa.types.is_boolean(type_):
            return True
    return False
