"""Arrow's own layouts of numpy arrays and Python values: buffers of numbers, bits, offsets and bytes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.buffers import ARROW_OF, holes_of, mask_of, offsets_of, raw, with_holes
from headrace.core.arrow.forms import RaggedTensorType, ragged_column
from headrace.core.arrow.objects import is_objects

_UNITS = ("s", "ms", "us", "ns")
_MOST_DAYS = 2**31 - 1


class ConversionError(ValueError):
    """A value that cannot become a column; says which and why. The caller adds where it came from."""


def flat(array: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap a contiguous one-dimensional array of numbers, booleans or times, without a copy if possible."""
    dtype = array.dtype
    if dtype in ARROW_OF:
        return pa.Array.from_buffers(ARROW_OF[dtype], len(array), [None, pa.py_buffer(array)])
    if dtype.kind == "b":
        return mask_of(array)
    if dtype.kind in "Mm":
        return flat_times(array)
    raise ConversionError(f"numpy dtype {dtype} has no Arrow type; convert it first (`astype`)")


def flat_times(array: np.ndarray[Any, Any]) -> pa.Array:
    """Wrap times in the nearest unit that Arrow has; NaT becomes null. What that unit cannot hold is refused."""
    unit, count = np.datetime_data(array.dtype)
    is_instant, holes = array.dtype.kind == "M", np.isnat(array)
    if unit == "generic" or (not is_instant and unit in ("Y", "M")):
        if not holes.all():
            told = "no unit" if unit == "generic" else "months or years, which differ in length"
            raise ConversionError(f"its durations are in {told}; give them another (`astype('m8[us]')`)")
        array = array.astype(f"{array.dtype.kind}8[s]")
    elif is_instant and (unit, count) == ("D", 1):
        days = array.view(np.int64)
        if (np.abs(days[~holes]) > _MOST_DAYS).any():
            raise ConversionError("one of its dates is further away than Arrow can count days")
        return with_holes(pa.date32(), np.where(holes, 0, days).astype(np.int32), holes)
    elif unit not in _UNITS or count != 1:
        near = unit if unit in _UNITS else "ns" if unit in ("ps", "fs", "as") else "s"
        array = exact_times(array, np.dtype(f"{array.dtype.kind}8[{near}]"))
    unit, _ = np.datetime_data(array.dtype)
    type_ = pa.timestamp(unit) if is_instant else pa.duration(unit)
    return with_holes(type_, array.view(np.int64), holes)


def exact_times(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert times to another unit, or refuse: numpy cuts digits and lets big numbers overflow in silence."""
    if np.datetime_data(array.dtype)[0] == "generic":  # NaT
        return array.astype(dtype)
    try:
        made = array.astype(dtype)
        same = np.array_equal(made.astype(array.dtype).view(np.int64), array.view(np.int64))
    except OverflowError:
        same = False
    if not same:
        raise ConversionError(
            f"one of its times, of {array.dtype}, does not fit {dtype}; convert it first (`astype`)"
        )
    return made


def whole_numbers(values: Sequence[int]) -> np.ndarray[Any, Any]:
    """Make an array of the integers; of objects if 64 bits do not hold them."""
    for dtype in (np.int64, np.uint64):
        try:
            return np.array(values, dtype)
        except OverflowError:
            continue
    return np.array(values, object)


def own(array: pa.Array) -> pa.Array:
    """Copy a column; one of Python objects shows its memory to nobody."""
    if is_objects(array.type):
        return array
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(
            own(array.indices), own(array.dictionary), ordered=array.type.ordered
        )
    if (
        pa.types.is_primitive(array.type)
        and array.type.bit_width >= 8
        and len(array)
        and not array.null_count
    ):
        # By numpy, whose memory is used again; Arrow's comes from the system each time, page by page.
        part = raw(array, f"V{array.type.bit_width // 8}").copy()
        return pa.Array.from_buffers(array.type, len(array), [None, pa.py_buffer(part)])
    return pa.concat_arrays([array])


def copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy an array that its owner may fill again; one that nobody can write to stays as it is."""
    return array if is_fixed(array) else array.copy()


def is_fixed(array: np.ndarray[Any, Any]) -> bool:
    """Say whether nobody can write to the array: neither it nor what it views lets them."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return True


# ---------------------------------------------------------------- arrays of numpy

Array = np.ndarray[Any, Any]
FromList = Callable[[Sequence[Any]], pa.Array]

_NUMBERS_AND_TIMES = "biufMm"


def from_ndarray(array: Array, from_list: FromList) -> pa.Array:
    """Make a column of an array with one row per entry of its first axis; ``from_list`` takes what is no number."""
    if array.ndim == 0:
        raise ConversionError(f"a column has one value per row, but this is the single value {array!r}")
    if array.dtype.names:
        parts = [from_ndarray(array[name], from_list) for name in array.dtype.names]
        return pa.StructArray.from_arrays(parts, names=list(array.dtype.names))
    if array.dtype.kind in "OSUT":
        return from_list(array.tolist())
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    values = _flat_masked(array) if is_masked(array) else flat(_own(np.asarray(array)).reshape(-1))
    if array.ndim == 1:
        return values
    # By parts, as `from_arrays` cannot tell how many rows there are when a row has no values.
    size = int(np.prod(array.shape[1:]))
    storage = pa.Array.from_buffers(pa.list_(values.type, size), len(array), [None], children=[values])
    if array.ndim == 2:
        return storage
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, array.shape[1:]), storage)


def is_masked(array: Array) -> bool:
    """Say whether the array has a mask, even if it masks nothing."""
    return hasattr(array, "mask")


def _own(array: Array) -> Array:
    """Copy an array that its owner may fill again for the next batch, while this one still waits to be encoded.

    Views of our own input are read-only and need no copy.
    """
    return np.ascontiguousarray(array) if is_fixed(array) else array.copy()


def _flat_masked(array: Any) -> pa.Array:
    """Lay out a masked array: what is masked becomes null."""
    values, holes = np.ma.getdata(array).reshape(-1).copy(), np.ma.getmaskarray(array).reshape(-1)
    if values.dtype.kind in "Mm":
        values[holes] = "NaT"
        return flat(values)
    return with_holes(flat(values[:0]).type, values, holes)


# ---------------------------------------------------------------- one array per row


def from_arrays(values: Sequence[Array | None], from_list: FromList, *, ragged: bool = False) -> pa.Array:
    """Make a column of arrays, one per row.

    Arrays of one shape become a column of that shape. Others of one axis become lists, of more axes ragged tensors;
    so do arrays without a value, as (0, 4) for "no boxes" is the shape of one row, not of a column. ``ragged`` says
    that the shapes may differ, even if these do not.
    """
    present: Sequence[Any] = [value for value in values if value is not None]
    shapes = {value.shape for value in present}
    if shapes == {()}:
        return from_list([None if value is None else value[()] for value in values])
    axes = {len(shape) for shape in shapes}
    if len(axes) > 1:
        raise ConversionError(
            f"its arrays have different numbers of axes ({_listed(shapes)}); give them the same number (`reshape`)"
        )
    if any(value.dtype.kind not in _NUMBERS_AND_TIMES for value in present):
        return from_list([None if value is None else value.tolist() for value in values])
    present = _alike(present)
    (ndim,) = axes
    masked = any(map(is_masked, present))
    if len(shapes) == 1 and len(present) == len(values) and not ragged and 0 not in present[0].shape:
        return from_ndarray(np.ma.stack(present) if masked else np.stack(present), from_list)
    if ndim == 1:
        joined: Array = (np.ma if masked else np).concatenate(present)
        return from_parts(values, from_ndarray(joined, from_list))
    if masked and any(np.ma.getmaskarray(value).any() for value in present):
        raise ConversionError("its arrays have masks and different shapes; fill them first (`filled`)")
    return _ragged(values, present, ndim)


def _ragged(values: Sequence[Array | None], present: Sequence[Array], ndim: int) -> pa.Array:
    if sum(value.size for value in present) >= 2**31:
        raise ConversionError(
            "its arrays hold more values together than one batch can count, 2,147,483,647; make smaller batches"
        )
    holes = holes_of(values)
    shapes = np.zeros((len(values), ndim), np.int64)
    shapes[~holes] = [value.shape for value in present]
    numbers = flat(np.concatenate([np.asarray(value).reshape(-1) for value in present]))
    return ragged_column(numbers, shapes, RaggedTensorType(numbers.type, ndim), holes)


def _listed(shapes: set[tuple[int, ...]]) -> str:
    shown = ", ".join(str(shape) for shape in sorted(shapes, key=lambda each: (len(each), each))[:4])
    return shown + (", …" if len(shapes) > 4 else "")


def _alike(arrays: Sequence[Array]) -> Sequence[Array]:
    """Give arrays one dtype, in which every value stays what it is; or refuse."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1 and next(iter(dtypes)).isnative:
        return arrays
    kinds = {"n" if dtype.kind in "iuf" else dtype.kind for dtype in dtypes}
    if len(kinds) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ConversionError(
            f"its arrays have dtypes that do not fit one Arrow type ({names}); convert them (`astype`)"
        )
    if kinds <= {"M", "m"}:
        unit = _common_unit(dtypes)
        return [exact_times(array, unit) for array in arrays]
    dtype = number_type(arrays)
    return [array.astype(dtype) for array in arrays]


def number_type(arrays: Sequence[Array]) -> np.dtype[Any]:
    """Return a dtype that holds the numbers of all arrays exactly; refuses if there is none.

    >>> number_type([np.arange(3), np.array([0.5], np.float32)])
    dtype('float64')
    """
    common = np.result_type(*{array.dtype for array in arrays})
    native: np.dtype[Any] = common.newbyteorder("=")
    if common.kind != "f":
        return native
    whole = [array for array in arrays if array.dtype.kind in "iu" and array.size]
    if all(array.dtype.kind in "iu" for array in arrays):  # int64 and uint64: numpy would make floats of them
        for dtype in (np.dtype(np.int64), np.dtype(np.uint64)):
            limits = np.iinfo(dtype)
            if all(limits.min <= int(array.min()) and int(array.max()) <= limits.max for array in whole):
                return dtype
        raise ConversionError("its integers are both negative and larger than 64 bits with a sign hold")
    most = 2 ** (np.finfo(common).nmant + 1)
    if any(int(array.max()) > most or int(array.min()) < -most for array in whole):
        raise ConversionError(
            f"its values do not fit one Arrow type (it mixes fractions with integers beyond {most:,}, which "
            f"{common} would round)"
        )
    return native


def from_parts(values: Sequence[Any], joined: pa.Array) -> pa.Array:
    """Make a list column; ``joined`` are the values of all rows end to end."""
    holes = holes_of(values)
    positions = offsets_of([0 if value is None else len(value) for value in values])
    small = positions[-1] < 2**31
    list_array = pa.ListArray if small else pa.LargeListArray
    offsets = flat(positions.astype(np.int32) if small else positions)
    return list_array.from_arrays(offsets, joined, mask=flat(holes) if holes.any() else None)


def instants(values: Sequence[Any]) -> pa.Array:
    """Make a column of datetimes: Python's, numpy's, those of pandas; the finest unit among them holds for all.

    A zone is that of the first; the others are the same instants in it.
    """
    zones = [getattr(value, "tzinfo", None) for value in values if value is not None]
    if not any(zones):
        return _moments(values, "datetime64")
    if not all(zones):
        raise ConversionError("some of its datetimes have a time zone, and others have none")
    made = _moments([_in_utc(value) for value in values], "datetime64")
    try:
        zone = pa.lib.tzinfo_to_string(zones[0])
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConversionError(f"the time zone {zones[0]!r} has no name for Arrow ({error})") from error
    return made.view(pa.timestamp(made.type.unit, zone))


def durations(values: Sequence[Any]) -> pa.Array:
    """Make a column of durations: Python's, numpy's, those of pandas; the finest unit among them holds for all."""
    return _moments(values, "timedelta64")


def dates(values: Sequence[datetime.date | None]) -> pa.Array:
    """Make a column of days."""
    return flat_times(np.array(values, "datetime64[D]"))


def clock_times(values: Sequence[datetime.time | None]) -> pa.Array:
    """Make a column of times of day."""
    if any(value is not None and value.tzinfo is not None for value in values):
        raise ConversionError("its times of day have a time zone, which no Arrow type keeps")
    micros = [0 if value is None else _micros(value) for value in values]
    holes = np.array([value is None for value in values], np.bool_)
    return with_holes(pa.time64("us"), np.array(micros, np.int64), holes)


def _micros(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _in_utc(value: Any) -> Any:
    if value is None or hasattr(value, "asm8"):  # those of pandas are in UTC if they have a zone
        return value
    try:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise ConversionError("one of its datetimes lies outside the years 1 to 9999 in UTC") from error


def _moments(values: Sequence[Any], kind: str) -> pa.Array:
    if set(map(type, values)) <= {datetime.datetime, datetime.timedelta, type(None)}:
        return flat_times(np.array(values, f"{kind}[us]"))
    generic = np.dtype(kind)
    found = [
        generic.type("NaT")
        if value is None
        else value
        if isinstance(value, np.generic)
        else value.asm8  # of pandas: in its own unit
        if hasattr(value, "asm8")
        else generic.type(value, "us")
        for value in values
    ]
    unit = _common_unit({value.dtype for value in found} - {generic} or {generic})
    exact = [
        value if value.dtype in (generic, unit) else exact_times(np.asarray(value), unit) for value in found
    ]
    return flat_times(np.array(exact, unit))


def _common_unit(dtypes: set[np.dtype[Any]]) -> np.dtype[Any]:
    try:
        return np.result_type(*dtypes)
    except TypeError as error:
        raise ConversionError("its durations mix months or years with other units") from error
