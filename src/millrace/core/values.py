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

from millrace.core.batch import NUMPY_OF, empty_columns, one_array, one_batch

_ARROW_OF = {np.dtype(scalar): arrow for arrow, scalar in NUMPY_OF.items()}
_EXACT_FLOAT = 2**53
_TIMES = {
    datetime.date: "datetime64[D]",
    datetime.datetime: "datetime64[us]",
    datetime.timedelta: "timedelta64[us]",
}


class ConversionError(ValueError):
    """A value that cannot become a column; says which and why. The caller adds where it came from."""


# ---------------------------------------------------------------- batches


def from_result(result: Any) -> pa.RecordBatch:
    """Turn what a ``map_batches`` function returned into a batch.

    A dict of columns, a DataFrame, a Table or a RecordBatch will do; anything else, and columns of different
    lengths, raise ``ConversionError``.
    """
    if isinstance(result, Mapping):
        if not result:
            raise ConversionError(
                "it returned a dict without columns; to drop all rows, return columns without rows"
            )
        return from_columns(result)
    if isinstance(result, pa.RecordBatch):
        return _unambiguous(result)
    if isinstance(result, pa.Table):
        return _unambiguous(one_batch(result))
    if hasattr(result, "columns") and hasattr(result, "iloc"):
        try:
            batch = pa.RecordBatch.from_pandas(result, preserve_index=False).replace_schema_metadata(None)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ConversionError(f"the DataFrame cannot become Arrow columns: {error}") from error
        return _unambiguous(batch)
    if hasattr(result, "columns") and hasattr(result, "to_arrow"):  # polars
        return one_batch(result.to_arrow())
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


def from_columns(columns: Mapping[Any, Any]) -> pa.RecordBatch:
    """Build a batch from a dict of column values; see ``column_from`` for what a column may be."""
    arrays: list[pa.Array] = []
    for name, values in columns.items():
        if not isinstance(name, str):
            raise ConversionError(f"column names are strings, but one is {name!r}")
        try:
            arrays.append(column_from(values))
        except ConversionError as error:
            raise ConversionError(f"column {name!r}: {error}") from error.__cause__
    lengths = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ConversionError(f"its columns have different lengths ({listed})")
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def from_rows(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Build a batch from row dicts; a key that a row lacks is null there."""
    names = _keys(rows)
    if not names:
        return empty_columns(len(rows))
    return from_columns({name: [row.get(name) for row in rows] for name in names})


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
        raise ConversionError(f"a column is an array or a list with one value per row, not {a(values)}")
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
    array = array.copy() if array.flags.writeable else np.ascontiguousarray(array)
    flat_values = _flat(array.reshape(-1))
    if array.ndim == 1:
        return flat_values
    size = int(np.prod(array.shape[1:]))
    type_ = pa.list_(flat_values.type, size)
    # By parts, as `from_arrays` cannot tell how many rows there are when a row has no values.
    storage = pa.Array.from_buffers(type_, len(array), [None], children=[flat_values])
    if array.ndim == 2:
        return storage
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat_values.type, array.shape[1:]), storage)


def _flat(array: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap a contiguous one-dimensional array of numbers, booleans or times, without a copy if possible."""
    dtype = array.dtype
    if dtype in _ARROW_OF:
        return pa.Array.from_buffers(_ARROW_OF[dtype], len(array), [None, pa.py_buffer(array)])
    if dtype.kind == "b":
        return pa.Array.from_buffers(pa.bool_(), len(array), [None, _bitmap(array)])
    if dtype.kind in "Mm":
        return _flat_times(array)
    raise ConversionError(f"numpy dtype {dtype} has no Arrow type; convert it first (`astype`)")


def _flat_times(array: np.ndarray[Any, Any]) -> pa.Array:
    unit, count = np.datetime_data(array.dtype)
    if (unit, count) == ("D", 1) and array.dtype.kind == "M":
        days = array.view(np.int64).astype(np.int32)
        return _with_holes(pa.date32(), days, np.isnat(array))
    if unit not in ("s", "ms", "us", "ns") or count != 1:
        unit = unit if unit in ("s", "ms", "us", "ns") else "ns" if unit in ("ps", "fs", "as") else "s"
        array = array.astype(f"{array.dtype.kind}8[{unit}]")
    type_ = pa.timestamp(unit) if array.dtype.kind == "M" else pa.duration(unit)
    return _with_holes(type_, array.view(np.int64), np.isnat(array))


def _with_holes(type_: pa.DataType, values: np.ndarray[Any, Any], holes: np.ndarray[Any, Any]) -> pa.Array:
    data = _bitmap(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(type_, len(values), [_bitmap(~holes) if holes.any() else None, data])


def _bitmap(flags: np.ndarray[Any, Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


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
        return _joined(values, pa.binary(), pa.large_binary())
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
        return _flat_times(np.array(values, _TIMES[kind]))
    return _by_arrow(values)


def _numbers(values: Sequence[Any], kinds: set[type], holes: bool) -> pa.Array:
    plain = [0 if value is None else value for value in values] if holes else values
    if kinds == {bool}:
        array = np.array(plain, np.bool_)
    elif kinds == {int}:
        array = _whole_numbers(plain)
        if array.dtype == object:
            return _by_arrow(values)  # refuses them
    else:
        if len(kinds) == 2 and any(type(value) is int and abs(value) > _EXACT_FLOAT for value in plain):
            return _by_arrow(values)  # refuses them: no float holds such an integer
        array = np.array(plain, np.float64)
    type_ = pa.bool_() if array.dtype == np.bool_ else _ARROW_OF[array.dtype]
    return _with_holes(type_, array, _holes(values))


def _whole_numbers(values: Sequence[int]) -> np.ndarray[Any, Any]:
    for dtype in (np.int64, np.uint64):
        try:
            return np.array(values, dtype)
        except OverflowError:
            continue
    return np.array(values, object)


def _holes(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.fromiter((value is None for value in values), np.bool_, len(values))


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
    return pa.StructArray.from_arrays(parts, names=list(names), mask=_flat(_holes(values)))


def _ragged(values: Sequence[Any], join: Callable[[list[Any]], pa.Array]) -> pa.Array:
    present = [value for value in values if value is not None]
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    positions = np.concatenate([[0], np.cumsum(lengths)])
    small = positions[-1] < 2**31
    offsets = _flat(positions.astype(np.int32 if small else np.int64))
    holes = _holes(values)
    list_array = pa.ListArray if small else pa.LargeListArray
    return list_array.from_arrays(offsets, join(present), mask=_flat(holes) if holes.any() else None)


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
    return _joined(encoded, pa.string(), pa.large_string())


def _joined(values: Sequence[bytes | None], small: pa.DataType, large: pa.DataType) -> pa.Array:
    """Lay strings end to end with their offsets: the Arrow layout."""
    lengths = np.fromiter((len(value) if value is not None else 0 for value in values), np.int64, len(values))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    type_ = small if offsets[-1] < 2**31 else large
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    holes = _holes(values)
    positions = offsets.astype(np.int32) if type_ is small else offsets
    bitmap = _bitmap(~holes) if holes.any() else None
    return pa.Array.from_buffers(type_, len(values), [bitmap, pa.py_buffer(positions), data])


def _by_arrow(values: Any) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConversionError(f"its values do not fit one Arrow type ({error})") from error
    return one_array(array) if isinstance(array, pa.ChunkedArray) else array
