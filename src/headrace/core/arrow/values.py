"""What the user's code gives back → Arrow: batches, rows and DataFrames. Columns are made in ``columns``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import empty_columns, one_array, one_batch
from headrace.core.arrow.columns import a as a
from headrace.core.arrow.columns import column_from as column_from
from headrace.core.arrow.columns import keys_of, made_of_arrays
from headrace.core.arrow.forms import ARRAYS, RaggedTensorType, marked
from headrace.core.arrow.input_view import InputRowsView, InputView, is_immutable
from headrace.core.arrow.layout import ConversionError as ConversionError

# ---------------------------------------------------------------- DataFrames, without importing pandas

_OF_PANDAS = frozenset({"PeriodDtype", "IntervalDtype", "SparseDtype", "CategoricalDtype"})


def from_frame(frame: Any, input_view: InputView | None = None) -> pa.RecordBatch:
    """Convert a DataFrame; named levels of its index become columns, as ``reset_index`` makes them."""
    named = [level for level, name in enumerate(frame.index.names) if name is not None]
    if named:
        listed = ", ".join(repr(frame.index.names[level]) for level in named)
        if set(frame.index.names) & set(frame.columns):
            raise ConversionError(
                f"the DataFrame's index is named {listed}, and so is a column; rename one of them, or drop "
                "the index (`reset_index(drop=True)`)"
            )
        frame = frame.reset_index(level=named)
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConversionError(f"two of its columns are named {twice!r}")
    likes = [input_view.type_of(name) if input_view is not None else None for name in names]
    by_value = [_by_value(dtype) or _only_told(like) for dtype, like in zip(frame.dtypes, likes, strict=True)]
    columns: dict[str, Any] = {name: frame.iloc[:, i] for i, name in enumerate(names) if by_value[i]}
    others = [i for i in range(len(names)) if not by_value[i]]
    if others:
        try:
            # As a table: a column of text that pandas has put together lies in several chunks.
            batch = one_batch(pa.Table.from_pandas(frame.iloc[:, others], preserve_index=False))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ConversionError(f"the DataFrame cannot become Arrow columns: {error}") from error
        columns.update(zip([names[i] for i in others], batch.columns, strict=True))
    if not columns:
        return empty_columns(len(frame))

    def made(name: str, values: Any) -> pa.Array:
        return values if isinstance(values, pa.Array) else _from_series(name, values, input_view)

    return _built({name: columns[name] for name in names}, made, input_view)


def _by_value(dtype: Any) -> bool:
    """Say whether a column is converted value by value: pyarrow would change some of them in silence."""
    return type(dtype).__name__ in _OF_PANDAS or (isinstance(dtype, np.dtype) and dtype.kind in "Oc")


def _from_series(name: str, series: Any, input_view: InputView | None) -> pa.Array:
    if input_view is None:
        return column_from(series)
    taken, like = input_view.column_of_cells(series.tolist()), input_view.type_of(name)
    if taken is None and like is not None and _only_told(like):
        taken = as_before(series, like)
    return column_from(series, ragged=varies(like)) if taken is None else taken


def _only_told(type_: pa.DataType | None) -> bool:
    """Say whether it is a map, or a decimal: such a type, or the scale, cannot be told from values."""
    return type_ is not None and bool(pa.types.is_map(type_) or pa.types.is_decimal(type_))


def varies(type_: pa.DataType | None) -> bool:
    """Say whether arrays in a column of this type may differ in shape."""
    return type_ is not None and bool(
        isinstance(type_, RaggedTensorType) or pa.types.is_list(type_) or pa.types.is_large_list(type_)
    )


def as_before(values: Any, like: pa.DataType) -> pa.Array | None:
    """Try the type that the column had; a map or the scale of a decimal cannot be told from its values."""
    try:
        made = pa.array(values, like, from_pandas=hasattr(values, "iloc") or None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return one_array(made) if isinstance(made, pa.ChunkedArray) else made


def from_result(result: Any, input_view: InputView | None = None) -> pa.RecordBatch:
    """Turn what a ``map_batches`` function returned into a batch that is nobody else's memory.

    A dict of columns, a DataFrame, a Table or a RecordBatch will do; anything else, and columns of different
    lengths, raise ``ConversionError``. ``input_view`` is what the function got.
    """
    input_view = input_view or InputView(empty_columns(0))
    if isinstance(result, Mapping):
        if not result:
            raise ConversionError(
                "it returned a dict without columns; to drop all rows, return columns without rows"
            )
        return input_view.marked(from_columns(result, input_view))
    is_arrow = isinstance(
        result, (pa.RecordBatch, pa.Table)
    )  # whose `columns` are made when they are asked for
    is_frame = not is_arrow and hasattr(result, "columns") and hasattr(result, "iloc")
    if is_arrow:
        batch = result
    elif is_frame:
        batch = from_frame(result, input_view)
    elif hasattr(result, "columns") and hasattr(result, "to_arrow"):  # polars
        batch = result.to_arrow()
    elif result is None:
        raise ConversionError("it returned None (is a `return` missing?)")
    else:
        raise ConversionError(
            f"it returned {a(result)}; a batch is a dict of columns, a pandas DataFrame, a pyarrow Table or "
            f"RecordBatch{_naming(result)}"
        )
    batch = one_batch(batch) if isinstance(batch, pa.Table) else batch
    owned = input_view.owned_batch(_unambiguous(batch))
    return input_view.marked(input_view.with_unchanged_restored(owned) if is_frame else owned)


def _naming(result: Any) -> str:
    if isinstance(result, list) and result and isinstance(result[0], Mapping):
        return (
            ". Rows one by one are for flat_map; here, make columns of them: "
            '`return {"x": [row["x"] for row in rows]}`'
        )
    column = isinstance(result, (list, np.ndarray)) or hasattr(result, "iloc") or hasattr(result, "detach")
    name = '. Name the column: `return {"prediction": values}`; or use predict, which keeps the other columns too'
    return name if column else ""


def _unambiguous(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConversionError(f"two of its columns are named {twice!r}")
    return batch


def from_columns(columns: Mapping[Any, Any], input_view: InputView | None = None) -> pa.RecordBatch:
    """Build a batch from a dict of column values; see ``column_from`` for what a column may be."""
    return _built(columns, lambda name, values: _column(name, values, input_view), input_view)


def _built(
    columns: Mapping[Any, Any],
    made: Callable[[str, Any], pa.Array],
    input_view: InputView | InputRowsView | None,
) -> pa.RecordBatch:
    """Build a batch of the columns that are made of these values; lists that were arrays are marked."""
    arrays: list[pa.Array] = []
    forms: dict[str, str] = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise ConversionError(f"column names are strings, but one is {name!r}")
        try:
            arrays.append(made(name, values))
        except ConversionError as error:
            raise ConversionError(f"column {name!r}: {error}") from error.__cause__
        if made_of_arrays(values, arrays[-1]) and not (input_view and input_view.has_lists(name)):
            forms[name] = ARRAYS
    lengths = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ConversionError(f"its columns have different lengths ({listed})")
    return marked(pa.RecordBatch.from_arrays(arrays, names=list(columns)), forms)


def _column(name: str, values: Any, input_view: InputView | None) -> pa.Array:
    if input_view is None:
        return column_from(values)
    place = input_view.index_of(values)
    if place is not None:
        before = input_view.column(place)
        return before if is_immutable(before, arrays=True) else _typed(values.tolist(), before.type, True)
    if isinstance(values, list) or (
        isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1
    ):
        taken = input_view.column_of_cells(list(values))
        if taken is not None:
            return taken
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        return _typed(values.tolist(), input_view.type_of(name), False, ragged=True)
    if isinstance(values, np.ndarray) and input_view.is_writable:
        values = values.copy()  # it may be a part of what was handed out, and be written to later
    if isinstance(values, (list, tuple)):
        return _typed(values, input_view.type_of(name), False)
    made = column_from(values)
    return made if isinstance(values, np.ndarray) or hasattr(values, "detach") else input_view.owned(made)


def _typed(values: Sequence[Any], like: pa.DataType | None, same: bool, *, ragged: bool = False) -> pa.Array:
    """Convert a list; to the type ``like`` if it holds the ``same`` objects, or if only that type can tell."""
    made = column_from(values, ragged=ragged or varies(like))
    if like is None or made.type == like:
        return made
    told = pa.types.is_map(like) or (pa.types.is_decimal(like) and pa.types.is_decimal(made.type))
    again = as_before(values, like) if same or told else None
    return made if again is None else again


def from_rows(
    rows: Sequence[Mapping[str, Any]], input_view: InputRowsView | None = None, index: Sequence[int] = ()
) -> pa.RecordBatch:
    """Build a batch from row dicts; a key that a row lacks is null there.

    ``input_view`` is what the function got, ``index`` the rows of it that these were made of.
    """
    names = keys_of(rows)
    if not names:
        return empty_columns(len(rows))
    return from_row_columns({name: [row.get(name) for row in rows] for name in names}, input_view, index)


def from_row_columns(
    given: Mapping[str, Sequence[Any]], input_view: InputRowsView | None = None, index: Sequence[int] = ()
) -> pa.RecordBatch:
    """Build a batch from the values that rows have, by their keys; see ``from_rows``."""
    if input_view is None:
        return from_columns(given)
    same: list[str] = []

    def made(name: str, values: Any) -> pa.Array:
        before = input_view.column(name, values, index)
        if before is None:
            return _typed(values, input_view.type_of(name), False)
        same.append(name)
        plain = is_immutable(before, arrays=input_view.shows_arrays(name))
        return before if plain else _typed(values, before.type, True)

    batch = _built(given, made, input_view)
    return input_view.marked(batch, same) if same else batch


def one_value(type_: pa.DataType) -> pa.Array:
    """Return an array of a value of a type; of none, if there is no simple one."""
    for value in ("", 0):
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.array([value]).cast(type_)
    return pa.array([], type_)
