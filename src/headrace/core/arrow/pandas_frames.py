"""DataFrames → Arrow, without importing pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import empty_columns, one_array
from headrace.core.arrow.columns import column_from, made_of_arrays
from headrace.core.arrow.forms import ARRAYS, marked
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.layout import ConversionError
from headrace.core.arrow.ragged import RaggedTensorType

_OF_PANDAS = frozenset({"PeriodDtype", "IntervalDtype", "SparseDtype", "CategoricalDtype"})


def from_frame(frame: Any, input_view: InputView) -> pa.RecordBatch:
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
    return frame_batch(frame, input_view)


def frame_batch(frame: Any, input_view: InputView | None = None) -> pa.RecordBatch:
    """Convert the columns of a DataFrame; ``input_view`` knows which columns there were before."""
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConversionError(f"two of its columns are named {twice!r}")
    made: dict[int, pa.Array] = {}
    arrays: dict[str, str] = {}
    for i, (name, dtype) in enumerate(zip(names, frame.dtypes, strict=True)):
        like = input_view.type_of(name) if input_view is not None else None
        if _by_value(dtype) or _only_told(like):
            try:
                made[i] = _column(frame.iloc[:, i], like, input_view)
                if made_of_arrays(frame.iloc[:, i], made[i]) and not (
                    input_view and input_view.has_lists(name)
                ):
                    arrays[name] = ARRAYS
            except ConversionError as error:
                raise ConversionError(f"column {name!r}: {error}") from error.__cause__
    others = [i for i in range(len(names)) if i not in made]
    if others:
        try:
            batch = pa.RecordBatch.from_pandas(frame.iloc[:, others], preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ConversionError(f"the DataFrame cannot become Arrow columns: {error}") from error
        made.update(zip(others, batch.columns, strict=True))
    if not made:
        return empty_columns(len(frame))
    return marked(pa.RecordBatch.from_arrays([made[i] for i in range(len(names))], names=names), arrays)


def _by_value(dtype: Any) -> bool:
    """Say whether a column is converted value by value: pyarrow would change some of them in silence."""
    return type(dtype).__name__ in _OF_PANDAS or (isinstance(dtype, np.dtype) and dtype.kind == "O")


def _column(series: Any, like: pa.DataType | None, input_view: InputView | None) -> pa.Array:
    taken = input_view.column_of_cells(series.tolist()) if input_view is not None else None
    if taken is not None:
        return taken
    if like is not None and _only_told(like):
        made = as_before(series, like)
        if made is not None:
            return made
    return column_from(series, ragged=varies(like))


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
