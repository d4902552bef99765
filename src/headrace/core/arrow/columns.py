"""One column of whatever a user has → Arrow. Every value stays what it is, or is refused with words.

``pa.array`` of a list imports pandas in silence where it is installed, which costs 0.35 s in every process; and it
cuts nanoseconds, drops time zones, and takes text for bytes where both come. So lists are laid out here; only rarer
Python values of one kind take that road.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import one_array
from headrace.core.arrow.buffers import ARROW_OF, NUMPY_OF, holes_of, joined, with_holes
from headrace.core.arrow.forms import as_ragged, is_list
from headrace.core.arrow.layout import (
    ConversionError,
    clock_times,
    copied,
    dates,
    durations,
    flat,
    from_arrays,
    from_ndarray,
    from_parts,
    instants,
    number_type,
    whole_numbers,
)
from headrace.core.arrow.objects import object_column

_EXACT_FLOAT = 2**53
_MISSING = frozenset({"NAType", "NaTType", "MaskedConstant"})  # of pandas and numpy, for None
_KNOWN_TO_ARROW = ("decimal", "uuid", "pyarrow", "pandas")  # whose values `pyarrow.array` takes
_PANDAS_ONLY = {"PeriodDtype": "`.dt.to_timestamp()`", "IntervalDtype": "its `left` and `right`"}

# What a value is. Values of one kind make a column; those of two kinds do only where none of them changes by that.
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("booleans", (bool, np.bool_)),
    ("durations", (datetime.timedelta, np.timedelta64)),  # which numpy counts among the integers
    ("integers", (int, np.integer)),
    ("floats", (float, np.floating)),
    ("decimals", (Decimal,)),
    ("strings", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("datetimes", (datetime.datetime, np.datetime64)),
    ("dates", (datetime.date,)),
    ("times of day", (datetime.time,)),
    ("calendar intervals", (pa.MonthDayNano,)),  # which are tuples
    ("dicts", (Mapping,)),
    ("lists", (list, tuple, set)),
    ("arrays", (np.ndarray,)),
)
_TOGETHER = ({"integers", "floats"}, {"integers", "decimals"})


def a(value: Any) -> str:
    """Name the kind of a value: ``"an int"``."""
    if value is None:
        return "None"
    noun = type(value).__name__
    return ("an " if noun[:1].lower() in "aeiou" or noun == "ndarray" else "a ") + noun


def column_from(values: Any, *, ragged: bool = False) -> pa.Array:
    """Turn one column of whatever kind into an Arrow array.

    Arrays of shape (n,) map to the Arrow type of their dtype; (n, k) to ``fixed_size_list[k]``; more
    dimensions to ``fixed_shape_tensor``. Lists of numbers, strings, bytes, dicts, lists, dates, arrays and None
    work, so do torch and TensorFlow tensors, Series and Arrow arrays. Arrays of different shapes become lists, or
    ragged tensors if they have several axes; ``ragged`` says that they may differ, even if these do not.
    Values of several kinds, unless none of them changes by being put together, and values that no Arrow type holds
    are a column of Python objects, see ``core.objects``.
    """
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, pa.ChunkedArray):
        return one_array(values)
    if isinstance(values, np.ndarray):
        return _from_ndarray(values)
    if isinstance(values, (list, tuple)):
        return _or_objects(values, ragged=ragged)
    if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not _is_column(values):
        value = values.item() if isinstance(values, np.generic) else values
        shown = repr(value) if isinstance(value, (str, bytes, int, float)) else ""
        repeated = f"; for the same value in every row: `[{shown}] * n`" if 0 < len(shown) <= 40 else ""
        raise ConversionError(
            f"a column is an array or a list with one value per row, not {a(values)}{repeated}"
        )
    if hasattr(values, "detach"):
        return _from_ndarray(_of_tensor(values))
    if hasattr(values, "to_arrow"):  # polars
        arrow = values.to_arrow()
        return one_array(arrow) if isinstance(arrow, pa.ChunkedArray) else arrow
    if hasattr(values, "iloc"):
        return _from_series(values, ragged=ragged)
    if _is_of_pandas(values):  # an index, or an array that may have nulls
        return _from_series(sys.modules["pandas"].Series(values), ragged=ragged)
    if hasattr(values, "__array__"):
        return _from_ndarray(np.asarray(values))
    return _or_objects(list(values))


def _is_column(values: Any) -> bool:
    """Say whether it has rows, and one column: a DataFrame, a Table and a MultiIndex have several."""
    kind = type(values)  # a Series has attributes that its labels name
    return hasattr(kind, "__len__") and not hasattr(kind, "columns") and kind.__name__ != "MultiIndex"


def _or_objects(values: Sequence[Any], *, ragged: bool = False) -> pa.Array:
    try:
        return _from_list(values, ragged=ragged)
    except ConversionError:
        return object_column([copied(value) if isinstance(value, np.ndarray) else value for value in values])


def why_objects(values: Sequence[Any]) -> str:
    """Say why a list is a column of Python objects.

    >>> why_objects([1, "a"])
    'its values do not fit one Arrow type (it mixes integers and strings)'
    """
    try:
        _from_list(values)
    except ConversionError as error:
        return str(error)
    return "they came as Python objects"


def made_of_arrays(values: Any, column: pa.Array) -> bool:
    """Say whether ``column``, which was made of ``values``, is a list column with an array of numbers per row.

    Arrays of one length would have become fixed-size lists, of which rows see arrays.
    """
    if not is_list(column.type):
        return False
    if column.type.value_type not in NUMPY_OF and not pa.types.is_boolean(column.type.value_type):
        return False
    if not isinstance(values, (list, tuple, np.ndarray)) and not hasattr(values, "iloc"):
        return False
    first = next((value for value in values if hasattr(value, "__len__")), None)
    return isinstance(first, np.ndarray) or (first is not None and _is_array(type(first)))


def _from_ndarray(array: np.ndarray[Any, Any]) -> pa.Array:
    if array.dtype == object and array.ndim == 1:  # arrays in it may differ in shape, even if these do not
        return _or_objects(array.tolist(), ragged=True)
    try:
        return from_ndarray(array, _from_list)
    except ConversionError:
        if array.ndim == 0 or array.dtype.kind in "Mm":
            raise
        return object_column(array.tolist() if array.ndim == 1 else [row.copy() for row in array])


def _of_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    """Return PyTorch's tensor as an array; bfloat16, which numpy lacks, as float32, which holds it."""
    try:
        dense = tensor.detach().cpu()
        array = (dense.float() if str(dense.dtype) == "torch.bfloat16" else dense).numpy()
    except (TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConversionError(f"a tensor of {tensor.dtype} has no numpy array ({reason})") from error
    return np.asarray(array)


def _from_series(series: Any, *, ragged: bool) -> pa.Array:
    dtype = series.dtype
    name = type(dtype).__name__
    known = getattr(getattr(dtype, "categories", None), "dtype", dtype)  # of categories, what they are
    way = _PANDAS_ONLY.get(type(known).__name__)
    if way is not None:
        raise ConversionError(
            f"only pandas knows its dtype {known}; convert it first: {way}, or `astype(str)`"
        )
    if name == "SparseDtype" or getattr(dtype, "kind", "") == "c":
        return _from_ndarray(np.asarray(series))
    # In such a column, pandas means by NaN that there is nothing.
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return _or_objects([None if _is_nan(value) else value for value in series.tolist()], ragged=ragged)
    column = _by_arrow(series)
    coded = pa.types.is_dictionary(column.type)
    # Where there is no category yet, pandas takes floats or objects.
    is_open = coded and not len(column.dictionary) and column.type.value_type in (pa.float64(), pa.null())
    return pa.nulls(len(column)) if is_open else column


def _is_of_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


# ---------------------------------------------------------------- lists


def _from_list(values: Sequence[Any], *, ragged: bool = False) -> pa.Array:
    kinds = set(map(type, values))
    holes = type(None) in kinds
    kinds.discard(type(None))
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        return _texts(values)
    if kinds == {bytes}:
        return joined(values, pa.binary())
    if kinds <= {int, float} or kinds == {bool}:
        return _numbers(values, kinds, holes)
    if any(kind.__name__ in _MISSING for kind in kinds):
        return _from_list(
            [None if type(value).__name__ in _MISSING else value for value in values], ragged=ragged
        )
    if any(map(_is_array, kinds)):
        values = [_array(value) for value in values]
        kinds = set(map(type, values)) - {type(None)}
    return _of_kind(_one_kind(kinds), values, kinds, ragged)


def _one_kind(kinds: set[type]) -> str:
    """Say what the values are; refuse values of several kinds, where one would be changed into the other."""
    found = {_kind(kind) for kind in kinds}
    if len(found) > 1 and found not in _TOGETHER:
        raise ConversionError(
            f"its values do not fit one Arrow type (it mixes {' and '.join(sorted(found))})"
        )
    return (
        "numbers" if found == {"integers", "floats"} else "decimals" if "decimals" in found else found.pop()
    )


def _kind(kind: type) -> str:
    for name, types in _KINDS:
        if issubclass(kind, types):
            return name
    return f"values of type {kind.__name__}"


def _of_kind(kind: str, values: Sequence[Any], kinds: set[type], ragged: bool) -> pa.Array:
    if kind in ("booleans", "integers", "floats", "numbers"):
        return _scalars(kind, values, kinds)
    if kind == "strings":
        return _texts(values)
    if kind == "bytes":
        plain = [None if value is None else bytes(value) for value in values]
        return joined(plain, pa.binary())
    if kind == "datetimes":
        return instants(values)
    if kind == "durations":
        return durations(values)
    if kind == "dates":
        return dates(values)
    if kind == "times of day":
        return clock_times(values)
    if kind == "dicts":
        return _structs(values)
    if kind == "lists":
        return from_parts(
            values, _within(list(chain.from_iterable(each for each in values if each is not None)))
        )
    if kind == "arrays":
        return from_arrays(values, _from_list, ragged=ragged)
    if kind == "calendar intervals":
        return _by_arrow(values)
    if not any(each.__module__.partition(".")[0] in _KNOWN_TO_ARROW for each in kinds):
        raise ConversionError(f"its values do not fit one Arrow type ({kind})")
    return _by_arrow(values)


def _is_array(kind: type) -> bool:
    """Say whether a value of this type is an array of another library than numpy."""
    return hasattr(kind, "detach") or (
        hasattr(kind, "__array__")
        and not issubclass(kind, (np.generic, np.ndarray))
        and hasattr(kind, "shape")
    )


def _array(value: Any) -> Any:
    if not _is_array(type(value)):
        return value
    if hasattr(value, "detach"):
        return _of_tensor(value)
    if _is_of_pandas(value) and not isinstance(value.dtype, np.dtype):  # which may have nulls
        return [None if _is_nan(each) else each for each in value.tolist()]
    return np.asarray(value)


def _numbers(values: Sequence[Any], kinds: set[type], holes: bool) -> pa.Array:
    plain = [0 if value is None else value for value in values] if holes else values
    if kinds == {bool}:
        array = np.array(plain, np.bool_)
    elif kinds == {int}:
        array = whole_numbers(plain)
        if array.dtype == object:
            raise ConversionError("its values do not fit one Arrow type (no integer type holds them all)")
    else:
        if len(kinds) == 2 and any(type(value) is int and abs(value) > _EXACT_FLOAT for value in plain):
            raise ConversionError(
                f"its values do not fit one Arrow type (it mixes fractions with integers beyond {_EXACT_FLOAT:,}, "
                "which floats would round)"
            )
        array = np.array(plain, np.float64)
    type_ = pa.bool_() if array.dtype == np.bool_ else ARROW_OF[array.dtype]
    return with_holes(type_, array, holes_of(values) if holes else np.zeros(0, np.bool_))


def _scalars(kind: str, values: Sequence[Any], kinds: set[type]) -> pa.Array:
    """Lay out numpy's numbers, in the dtype that they have, and subclasses of Python's."""
    holes = holes_of(values)
    if all(issubclass(each, np.generic) for each in kinds):
        present = [np.asarray(value) for value in values if value is not None]
        dtype = np.dtype(np.bool_) if kind == "booleans" else number_type(present)
        array = np.array([0 if value is None else value for value in values], dtype)
        return with_holes(flat(array[:0]).type, array, holes)
    if any(issubclass(each, np.longdouble) for each in kinds):
        raise ConversionError(
            f"numpy dtype {np.dtype(np.longdouble)} has no Arrow type; convert it first (`astype`)"
        )
    python = bool if kind == "booleans" else _python
    plain = [None if value is None else python(value) for value in values]
    return _numbers(plain, set(map(type, plain)) - {type(None)}, bool(holes.any()))


def _python(value: Any) -> int | float:
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def _within(values: Sequence[Any]) -> pa.Array:
    """Lay out what dicts or lists hold. Arrays of one length are lists there: those of later rows may have others."""
    made = _from_list(values)
    return as_ragged(made) if pa.types.is_fixed_size_list(made.type) else made


def _structs(values: Sequence[Mapping[Any, Any] | None]) -> pa.Array:
    names = keys_of(values)
    if not all(isinstance(name, str) for name in names):
        other = next(name for name in names if not isinstance(name, str))
        raise ConversionError(f"the keys of a dict are strings, but one is {a(other)}")
    holes = holes_of(values)
    if not names:
        return pa.StructArray.from_buffers(pa.struct([]), len(values), [flat(~holes).buffers()[1]])
    parts = []
    for name in names:
        try:
            parts.append(_within([value.get(name) if value is not None else None for value in values]))
        except ConversionError as error:
            raise ConversionError(f"key {name!r}: {error}") from error.__cause__
    return pa.StructArray.from_arrays(parts, names=list(names), mask=flat(holes))


def keys_of(rows: Sequence[Mapping[Any, Any] | None]) -> dict[Any, None]:
    """Return the keys of all dicts, in the order in which they come."""
    names: dict[Any, None] = {}
    for row in rows:
        if row is not None:
            names.update(dict.fromkeys(row))
    return names


def _texts(values: Sequence[str | None]) -> pa.Array:
    try:
        encoded = [value.encode() if value is not None else None for value in values]
    except UnicodeEncodeError as error:
        raise ConversionError(f"a string cannot be encoded as UTF-8 ({error.reason})") from error
    return joined(encoded, pa.string())


def _by_arrow(values: Any) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConversionError(f"its values do not fit one Arrow type ({error})") from error
    return one_array(array) if isinstance(array, pa.ChunkedArray) else array
