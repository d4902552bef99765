"""Batches and their formats: what a step sees of a ``pyarrow.RecordBatch``, and what it may give back.

Much of pyarrow imports pandas in silence where it is installed (``Array.to_numpy``, ``pa.array(list)``), which
costs 0.35 s in every process. So the common conversions here go by buffers; only nested Python values take
the slow road.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

BatchFormat = Literal["numpy", "pandas", "pyarrow"]

_NUMPY_OF = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
_ARROW_OF = {np.dtype(scalar): arrow for arrow, scalar in _NUMPY_OF.items()}


class ConversionError(ValueError):
    """A value that cannot become a column; says which and why. The caller adds where it came from."""


# ---------------------------------------------------------------- Arrow → what the user asked for


def to_format(batch: pa.RecordBatch, batch_format: BatchFormat) -> Any:
    """View ``batch`` as a dict of arrays, a DataFrame or a Table."""
    if batch_format == "numpy":
        return {
            name: to_numpy(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
    if batch_format == "pandas":
        return batch.to_pandas()
    return pa.Table.from_batches([batch])


def to_numpy(column: pa.Array) -> np.ndarray[Any, Any]:
    """View a column as a read-only array, without a copy where nothing is null.

    Integers with nulls become float64 with NaN; booleans with nulls, strings, binary, decimals and nested
    values become objects; timestamps, dates and durations become datetime64 / timedelta64 with NaT;
    fixed-size lists and tensors of numbers become arrays of shape (n, k…).
    """
    array = _to_numpy(column)
    array.flags.writeable = False
    return array


def _to_numpy(column: pa.Array) -> np.ndarray[Any, Any]:
    type_ = column.type
    if isinstance(column, pa.FixedShapeTensorArray):
        rows = _to_numpy(column.storage)
        return np.reshape(rows, (len(column), *type_.shape)) if rows.dtype != object else rows
    if isinstance(column, pa.ExtensionArray):
        return _to_numpy(column.storage)
    if pa.types.is_dictionary(type_):
        return _to_numpy(column.dictionary_decode())
    if type_ in _NUMPY_OF:
        return _numbers(column, np.dtype(_NUMPY_OF[type_]))
    if pa.types.is_boolean(type_):
        return _booleans(column)
    if pa.types.is_temporal(type_) and not pa.types.is_time(type_) and type_ != pa.month_day_nano_interval():
        return _times(column)
    if pa.types.is_fixed_size_list(type_) and column.null_count == 0:
        values = _to_numpy(column.flatten())
        if values.dtype != object or type_.list_size == 0:
            return np.reshape(values, (len(column), type_.list_size, *values.shape[1:]))
    return _objects(column)


def _numbers(column: pa.Array, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    data = column.buffers()[1]
    if len(column) == 0 or data is None:
        values = np.zeros(len(column), dtype)
    else:
        values = np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)
    if column.null_count == 0:
        return values.view()
    holes = ~_bits(column.buffers()[0], column.offset, len(column))
    values = values.astype(np.float64 if dtype.kind in "iu" else dtype)
    values[holes] = np.nan
    return values


def _bits(buffer: pa.Buffer, offset: int, length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    first, skip = offset // 8, offset % 8
    raw = np.frombuffer(buffer, np.uint8, (skip + length + 7) // 8, first)
    return np.unpackbits(raw, bitorder="little")[skip : skip + length].view(np.bool_)


def _booleans(column: pa.Array) -> np.ndarray[Any, Any]:
    if column.null_count:
        return _objects(column)
    if len(column) == 0:
        return np.zeros(0, np.bool_)
    return _bits(column.buffers()[1], column.offset, len(column))


def _times(column: pa.Array) -> np.ndarray[Any, Any]:
    type_ = column.type
    if pa.types.is_date32(type_):
        days = _numbers(_without_nulls(column.view(pa.int32())), np.dtype(np.int32)).astype(np.int64)
        result = days.view("datetime64[D]")
    else:
        unit = "ms" if pa.types.is_date64(type_) else type_.unit
        kind = "timedelta64" if pa.types.is_duration(type_) else "datetime64"
        result = _numbers(_without_nulls(column.view(pa.int64())), np.dtype(np.int64)).view(f"{kind}[{unit}]")
    if column.null_count:
        result = result.copy()
        result[~_bits(column.buffers()[0], column.offset, len(column))] = "NaT"
    return result


def _without_nulls(column: pa.Array) -> pa.Array:
    """Drop the validity bitmap, keeping the values under it as they are."""
    return pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)


def _objects(column: pa.Array) -> np.ndarray[Any, Any]:
    values = np.empty(len(column), object)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        for i, item in enumerate(column):
            values[i] = to_numpy(item.values) if item.is_valid else None
    else:
        values[:] = column.to_pylist()
    return values


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict of plain Python values; tensors as read-only arrays."""
    names = batch.schema.names
    columns = [_python_values(column) for column in batch.columns]
    if not columns:
        yield from ({} for _ in range(batch.num_rows))
        return
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _python_values(column: pa.Array) -> Sequence[Any]:
    if is_tensor(column.type) and column.null_count == 0:
        return cast("Sequence[Any]", to_numpy(column))
    return cast("Sequence[Any]", column.to_pylist())


def is_tensor(type_: pa.DataType) -> bool:
    """Say whether a column of this type is handed out as one (n, k…) array of numbers."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return True
    while pa.types.is_fixed_size_list(type_):
        type_ = type_.value_type
        if type_ in _NUMPY_OF or pa.types.is_boolean(type_):
            return True
    return False


# ---------------------------------------------------------------- what the user gave back → Arrow


def from_result(result: Any) -> pa.RecordBatch:
    """Turn what a ``map_batches`` function returned into a batch.

    A dict of columns, a DataFrame, a Table or a RecordBatch will do; anything else, and columns of different
    lengths, raise ``ConversionError``.
    """
    if isinstance(result, pa.RecordBatch):
        return result
    if isinstance(result, pa.Table):
        return _one_batch(result)
    if isinstance(result, Mapping):
        return from_columns(result)
    if hasattr(result, "iloc") and hasattr(result, "columns"):
        try:
            return pa.RecordBatch.from_pandas(result, preserve_index=False).replace_schema_metadata(None)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ConversionError(f"the DataFrame cannot become Arrow columns: {error}") from error
    if result is None:
        raise ConversionError("it returned None (is a `return` missing?)")
    raise ConversionError(
        f"it returned {_article(type(result).__name__)}; a batch is a dict of columns, a pandas DataFrame, "
        "a pyarrow Table or RecordBatch"
    )


def _article(noun: str) -> str:
    return ("an " if noun[:1].lower() in "aeiou" else "a ") + noun


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    if table.num_columns == 0:
        return empty_columns(table.num_rows)
    columns = [one_array(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, copying only if it has several chunks."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return empty_array(column.type)
    return pa.concat_arrays(column.chunks)


def empty_array(type_: pa.DataType) -> pa.Array:
    """Return a column of no rows."""
    return pa.nulls(0, type_)


def empty_columns(rows: int) -> pa.RecordBatch:
    """Return a batch that has rows but no columns."""
    struct = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(struct)


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
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    if not names:
        return empty_columns(len(rows))
    return from_columns({name: [row.get(name) for row in rows] for name in names})


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
        raise ConversionError(
            f"a column is an array or a list with one value per row, not {_article(type(values).__name__)}"
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
    if array.dtype.kind in "OSUT" or array.dtype.names:
        flat = array.tolist() if array.ndim == 1 else [list(row) for row in array]
        return _from_list([_plain_bytes(value) for value in flat] if array.dtype.kind == "S" else flat)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # A function may keep its array and fill it again for the next batch, while this one still waits to be
    # encoded. Views of our own input are read-only and need no copy.
    array = array.copy() if array.flags.writeable else np.ascontiguousarray(array)
    flat_values = _flat(array.reshape(-1))
    if array.ndim == 1:
        return flat_values
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(flat_values, array.shape[1])
    shape = array.shape[1:]
    storage = pa.FixedSizeListArray.from_arrays(flat_values, int(np.prod(shape)))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat_values.type, shape), storage)


def _plain_bytes(value: Any) -> bytes:
    return bytes(value)


def _flat(array: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap a contiguous one-dimensional array of numbers, booleans or times, without a copy if possible."""
    dtype = array.dtype
    if dtype in _ARROW_OF:
        return pa.Array.from_buffers(_ARROW_OF[dtype], len(array), [None, pa.py_buffer(array)])
    if dtype.kind == "b":
        return pa.Array.from_buffers(
            pa.bool_(), len(array), [None, pa.py_buffer(np.packbits(array, bitorder="little"))]
        )
    if dtype.kind in "Mm":
        return _flat_times(array)
    raise ConversionError(f"numpy dtype {dtype} has no Arrow type; convert it first (`astype`)")


def _flat_times(array: np.ndarray[Any, Any]) -> pa.Array:
    unit, _ = np.datetime_data(array.dtype)
    if unit == "D" and array.dtype.kind == "M":
        days = array.view(np.int64).astype(np.int32)
        return _with_holes(pa.date32(), days, np.isnat(array))
    if unit not in ("s", "ms", "us", "ns"):
        unit = "s" if unit in ("W", "h", "m", "D") else "ns"
        array = array.astype(f"{array.dtype.kind}8[{unit}]")
    type_ = pa.timestamp(unit) if array.dtype.kind == "M" else pa.duration(unit)
    return _with_holes(type_, array.view(np.int64), np.isnat(array))


def _with_holes(type_: pa.DataType, values: np.ndarray[Any, Any], holes: np.ndarray[Any, Any]) -> pa.Array:
    bitmap = pa.py_buffer(np.packbits(~holes, bitorder="little")) if holes.any() else None
    return pa.Array.from_buffers(type_, len(values), [bitmap, pa.py_buffer(values)])


def _from_list(values: Sequence[Any]) -> pa.Array:
    kinds = set(map(type, values))
    holes = type(None) in kinds
    kinds.discard(type(None))
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        return _texts(values, holes)
    if kinds == {bytes}:
        return _joined(values, pa.binary(), pa.large_binary())
    if not holes and kinds <= {int}:
        return _integers(values)
    if not holes and (kinds == {float} or kinds == {bool}):
        return _from_ndarray(np.array(values))
    if not holes and all(issubclass(kind, np.generic) for kind in kinds):
        return _from_ndarray(np.array(values))
    if any(hasattr(value, "detach") for value in values[:1]):
        return _from_list([v.detach().cpu().numpy() if v is not None else None for v in values])
    if kinds == {np.ndarray}:
        return _arrays(values, holes)
    if np.ndarray in kinds:
        raise ConversionError("it mixes arrays with other values")
    return _by_arrow(values)


def _integers(values: Sequence[int]) -> pa.Array:
    try:
        return _flat(np.array(values, np.int64))
    except OverflowError:
        return _by_arrow(values)


def _arrays(values: Sequence[Any], holes: bool) -> pa.Array:
    shapes = {value.shape for value in values if value is not None}
    if len(shapes) == 1 and not holes and values[0].ndim > 0 and values[0].dtype.kind in "biufMm":
        return _from_ndarray(np.stack(values))
    if all(value is None or value.ndim == 1 for value in values):
        return _by_arrow(values)
    if all(value is None or value.ndim == 0 for value in values):
        return _from_list([None if value is None else value.item() for value in values])
    listed = ", ".join(str(shape) for shape in sorted(shapes)[:4])
    raise ConversionError(
        f"its arrays have different shapes ({listed}); pad them, or make them one-dimensional"
    )


def _texts(values: Sequence[str | None], holes: bool) -> pa.Array:
    try:
        encoded = [value.encode() if value is not None else None for value in values]
    except UnicodeEncodeError as error:
        raise ConversionError(f"a string cannot be encoded as UTF-8 ({error.reason})") from error
    return _joined(encoded, pa.string(), pa.large_string())


def _joined(values: Sequence[bytes | None], small: pa.DataType, large: pa.DataType) -> pa.Array:
    """Lay strings end to end with their offsets: the Arrow layout, without ``pa.array`` and its pandas."""
    lengths = np.fromiter((len(value) if value is not None else 0 for value in values), np.int64, len(values))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    type_ = small if offsets[-1] < 2**31 else large
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    bitmap = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    positions = offsets.astype(np.int32) if type_ is small else offsets
    return pa.Array.from_buffers(type_, len(values), [bitmap, pa.py_buffer(positions), data])


def _by_arrow(values: Any) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConversionError(f"its values do not fit one Arrow type ({error})") from error
    return one_array(array) if isinstance(array, pa.ChunkedArray) else array


# ---------------------------------------------------------------- cutting and joining


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of one schema, copying; a single one is handed back as it is."""
    if len(batches) == 1:
        return batches[0]
    if batches[0].num_columns == 0:
        return empty_columns(sum(batch.num_rows for batch in batches))
    return _one_batch(pa.Table.from_batches(batches))


def to_ipc(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Encode batches as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return cast("bytes", out.getvalue().to_pybytes())


def from_ipc(data: bytes) -> list[pa.RecordBatch]:
    """Decode an Arrow IPC stream; the batches view ``data``."""
    return list(pa.ipc.open_stream(data))


def schema_bytes(schema: pa.Schema) -> bytes:
    """Encode a schema for the journal."""
    return cast("bytes", schema.serialize().to_pybytes())


def schema_from(data: bytes) -> pa.Schema:
    """Decode what ``schema_bytes`` made."""
    return pa.ipc.read_schema(pa.py_buffer(data))
