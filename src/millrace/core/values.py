"""What the user's code gives back → Arrow.

``pa.array`` of a list imports pandas in silence where it is installed, which costs 0.35 s in every process. So
numbers, texts, times, dicts and lists of these are laid out here; only rarer Python values take the slow road.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.batch import empty_columns, one_array, one_batch
from millrace.core.frames import as_before, from_frame
from millrace.core.handed import Handed, HandedRows, is_plain
from millrace.core.layout import (
    ARROW_OF,
    flat,
    flat_times,
    holes_of,
    is_fixed,
    joined,
    whole_numbers,
    with_holes,
)
from millrace.core.layout import (
    ConversionError as ConversionError,
)

_EXACT_FLOAT = 2**53
_TIMES = {
    datetime.date: "datetime64[D]",
    datetime.datetime: "datetime64[us]",
    datetime.timedelta: "timedelta64[us]",
}


# ---------------------------------------------------------------- batches


def from_result(result: Any, handed: Handed | None = None) -> pa.RecordBatch:
    """Turn what a ``map_batches`` function returned into a batch that is nobody else's memory.

    A dict of columns, a DataFrame, a Table or a RecordBatch will do; anything else, and columns of different
    lengths, raise ``ConversionError``. ``handed`` is what the function got.
    """
    handed = handed or Handed(empty_columns(0))
    if isinstance(result, Mapping):
        if not result:
            raise ConversionError(
                "it returned a dict without columns; to drop all rows, return columns without rows"
            )
        return from_columns(result, handed)
    if isinstance(result, pa.RecordBatch):
        return handed.owned_batch(_unambiguous(result))
    if isinstance(result, pa.Table):
        return handed.owned_batch(_unambiguous(one_batch(result)))
    if hasattr(result, "columns") and hasattr(result, "iloc"):
        return handed.mended(handed.owned_batch(_unambiguous(from_frame(result, handed))))
    if hasattr(result, "columns") and hasattr(result, "to_arrow"):  # polars
        return handed.owned_batch(one_batch(result.to_arrow()))
    if result is None:
        raise ConversionError("it returned None (is a `return` missing?)")
    raise ConversionError(
        f"it returned {a(result)}; a batch is a dict of columns, a pandas DataFrame, a pyarrow Table or "
        f"RecordBatch{_naming(result)}"
    )


def a(value: Any) -> str:
    """Name the kind of a value: ``"an int"``."""
    if value is None:
        return "None"
    noun = type(value).__name__
    return ("an " if noun[:1].lower() in "aeiou" or noun == "ndarray" else "a ") + noun


def _naming(result: Any) -> str:
    column = isinstance(result, (list, np.ndarray)) or hasattr(result, "iloc") or hasattr(result, "detach")
    return '. Name the column: `return {"prediction": values}`' if column else ""


def _unambiguous(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConversionError(f"two of its columns are named {twice!r}")
    return batch


def from_columns(columns: Mapping[Any, Any], handed: Handed | None = None) -> pa.RecordBatch:
    """Build a batch from a dict of column values; see ``column_from`` for what a column may be."""
    arrays: list[pa.Array] = []
    for name, values in columns.items():
        if not isinstance(name, str):
            raise ConversionError(f"column names are strings, but one is {name!r}")
        try:
            arrays.append(_column(name, values, handed))
        except ConversionError as error:
            raise ConversionError(f"column {name!r}: {error}") from error.__cause__
    lengths = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ConversionError(f"its columns have different lengths ({listed})")
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(name: str, values: Any, handed: Handed | None) -> pa.Array:
    if handed is None:
        return column_from(values)
    place = handed.place_of(values)
    if place is not None:
        before = handed.column(place)
        return before if is_plain(before, arrays=True) else _typed(values.tolist(), before.type, True)
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return _typed(values, handed.type_of(name), False)
    made = column_from(values)
    return made if isinstance(values, np.ndarray) or hasattr(values, "detach") else handed.owned(made)


def _typed(values: Sequence[Any], like: pa.DataType | None, same: bool) -> pa.Array:
    """Convert a list; to the type ``like`` if it holds the ``same`` objects, or if only that type can tell."""
    if like is None or not (same or pa.types.is_map(like) or pa.types.is_decimal(like)):
        return column_from(values)
    try:
        made = column_from(values)
    except ConversionError:
        made = as_before(values, like)
        if made is None:
            raise
        return made
    if made.type == like or not (same or pa.types.is_map(like) or pa.types.is_decimal(made.type)):
        return made
    again = as_before(values, like)
    return made if again is None else again


def from_rows(
    rows: Sequence[Mapping[str, Any]], handed: HandedRows | None = None, index: Sequence[int] = ()
) -> pa.RecordBatch:
    """Build a batch from row dicts; a key that a row lacks is null there.

    ``handed`` is what the function got, ``index`` the rows of it that these were made of.
    """
    names = _keys(rows)
    if not names:
        return empty_columns(len(rows))
    columns: dict[str, Any] = {}
    for name in names:
        values: Any = [row.get(name) for row in rows]
        before = handed.column(name, values, index) if handed is not None else None
        if handed is not None and isinstance(name, str):
            try:
                if before is None:
                    values = _typed(values, handed.type_of(name), False)
                else:
                    values = before if is_plain(before, arrays=False) else _typed(values, before.type, True)
            except ConversionError as error:
                raise ConversionError(f"column {name!r}: {error}") from error.__cause__
        columns[name] = values
    return from_columns(columns)


def _keys(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, None]:
    names: dict[str, None] = {}
    for row in rows:
        if row is not None:
            names.update(dict.fromkeys(row))
    return names


# ---------------------------------------------------------------- columns


def column_from(values: Any) -> pa.Array:
    """Turn one column of whatever kind into an Arrow array.

    Arrays of shape (n,) map to the Arrow type of their dtype; (n, k) to ``fixed_size_list[k]``; more
    dimensions to ``fixed_shape_tensor``. Lists of numbers, strings, bytes, dicts, lists, dates, equal-shaped
    arrays and None work, so do torch and TensorFlow tensors, Series and Arrow arrays.
    """
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, pa.ChunkedArray):
        return one_array(values)
    if isinstance(values, np.ndarray):
        return _from_ndarray(values)
    if isinstance(values, (list, tuple)):
        return _from_list(values)
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__"):
        shown = repr(values) if isinstance(values, (str, bytes, int, float)) else ""
        repeated = f"; for the same value in every row: `[{shown}] * n`" if 0 < len(shown) <= 40 else ""
        raise ConversionError(
            f"a column is an array or a list with one value per row, not {a(values)}{repeated}"
        )
    if hasattr(values, "detach"):  # torch
        return _from_ndarray(values.detach().cpu().numpy())
    if hasattr(values, "to_arrow"):  # polars
        arrow = values.to_arrow()
        return one_array(arrow) if isinstance(arrow, pa.ChunkedArray) else arrow
    if hasattr(values, "iloc"):
        return _by_arrow(values)
    if hasattr(values, "__array__"):
        return _from_ndarray(np.asarray(values))
    return _from_list(list(values))


def _from_ndarray(array: np.ndarray[Any, Any]) -> pa.Array:
    if array.ndim == 0:
        raise ConversionError(f"a column has one value per row, but this is the single value {array!r}")
    if hasattr(array, "mask"):
        return _from_list(array.tolist())  # a masked array: what is masked becomes None
    if array.dtype.names:
        parts = [_from_ndarray(array[name]) for name in array.dtype.names]
        return pa.StructArray.from_arrays(parts, names=list(array.dtype.names))
    if array.dtype.kind in "OSUT":
        return _from_list(array.tolist())
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # A function may keep its array and fill it again for the next batch, while this one still waits to be
    # encoded. Views of our own input are read-only and need no copy.
    array = np.ascontiguousarray(array) if is_fixed(array) else array.copy()
    flat_values = flat(array.reshape(-1))
    if array.ndim == 1:
        return flat_values
    size = int(np.prod(array.shape[1:]))
    type_ = pa.list_(flat_values.type, size)
    # By parts, as `from_arrays` cannot tell how many rows there are when a row has no values.
    storage = pa.Array.from_buffers(type_, len(array), [None], children=[flat_values])
    if array.ndim == 2:
        return storage
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat_values.type, array.shape[1:]), storage)


# ---------------------------------------------------------------- lists


def _from_list(values: Sequence[Any]) -> pa.Array:
    kinds = set(map(type, values))
    holes = type(None) in kinds
    kinds.discard(type(None))
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        return _texts(values)
    if kinds == {bytes}:
        return joined(values, pa.binary(), pa.large_binary())
    if kinds <= {int, float} or kinds == {bool}:
        return _numbers(values, kinds, holes)
    if not holes and all(issubclass(kind, np.generic) for kind in kinds):
        return _from_ndarray(np.array(values))
    if kinds == {dict}:
        return _structs(values)
    if kinds <= {list, tuple}:
        return _ragged(values, lambda present: _from_list(list(chain.from_iterable(present))))
    if all(hasattr(kind, "detach") for kind in kinds):
        return _from_list([value.detach().cpu().numpy() if value is not None else None for value in values])
    if kinds == {np.ndarray}:
        return _arrays(values, holes)
    if np.ndarray in kinds:
        raise ConversionError("it mixes arrays with other values")
    (kind, *others) = kinds
    if not others and kind in _TIMES and not any(getattr(value, "tzinfo", None) for value in values):
        return flat_times(np.array(values, _TIMES[kind]))
    return _by_arrow(values)


def _numbers(values: Sequence[Any], kinds: set[type], holes: bool) -> pa.Array:
    plain = [0 if value is None else value for value in values] if holes else values
    if kinds == {bool}:
        array = np.array(plain, np.bool_)
    elif kinds == {int}:
        array = whole_numbers(plain)
        if array.dtype == object:
            return _by_arrow(values)  # refuses them
    else:
        if len(kinds) == 2 and any(type(value) is int and abs(value) > _EXACT_FLOAT for value in plain):
            return _by_arrow(values)  # refuses them: no float holds such an integer
        array = np.array(plain, np.float64)
    type_ = pa.bool_() if array.dtype == np.bool_ else ARROW_OF[array.dtype]
    return with_holes(type_, array, holes_of(values))


def _structs(values: Sequence[dict[str, Any] | None]) -> pa.Array:
    names = _keys(values)
    if not names or not all(isinstance(name, str) for name in names):
        return _by_arrow(values)
    parts = []
    for name in names:
        try:
            parts.append(_from_list([value.get(name) if value is not None else None for value in values]))
        except ConversionError as error:
            raise ConversionError(f"key {name!r}: {error}") from error.__cause__
    return pa.StructArray.from_arrays(parts, names=list(names), mask=flat(holes_of(values)))


def _ragged(values: Sequence[Any], join: Callable[[list[Any]], pa.Array]) -> pa.Array:
    present = [value for value in values if value is not None]
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    positions = np.concatenate([[0], np.cumsum(lengths)])
    small = positions[-1] < 2**31
    offsets = flat(positions.astype(np.int32 if small else np.int64))
    holes = holes_of(values)
    list_array = pa.ListArray if small else pa.LargeListArray
    return list_array.from_arrays(offsets, join(present), mask=flat(holes) if holes.any() else None)


def _arrays(values: Sequence[Any], holes: bool) -> pa.Array:
    present = [value for value in values if value is not None]
    shapes = {value.shape for value in present}
    dtypes = {value.dtype for value in present}
    if shapes == {()}:
        return _from_list([None if value is None else value.item() for value in values])
    if len(shapes) == 1 and not holes and all(dtype.kind in "biufMm" for dtype in dtypes):
        return _from_ndarray(np.stack(values))
    if all(value.ndim == 1 for value in present):
        return _ragged(values, lambda parts: _from_ndarray(np.concatenate(parts)))
    listed = ", ".join(str(shape) for shape in sorted(shapes)[:4])
    if len(shapes) == 1:
        raise ConversionError(
            f"some of its arrays of shape {listed} are None; only one-dimensional ones may be"
        )
    raise ConversionError(
        f"its arrays have different shapes ({listed}); pad them, or make them one-dimensional"
    )


def _texts(values: Sequence[str | None]) -> pa.Array:
    try:
        encoded = [value.encode() if value is not None else None for value in values]
    except UnicodeEncodeError as error:
        raise ConversionError(f"a string cannot be encoded as UTF-8 ({error.reason})") from error
    return joined(encoded, pa.string(), pa.large_string())


def _by_arrow(values: Any) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConversionError(f"its values do not fit one Arrow type ({error})") from error
    return one_array(array) if isinstance(array, pa.ChunkedArray) else array
