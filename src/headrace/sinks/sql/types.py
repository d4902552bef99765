"""Which Arrow types a table holds, and whether a column fits one that is there."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from headrace.sinks.sql.vectors import vector_type

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WIDER = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def stored(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column is inserted, which holds all its values; None if no table has one.

    >>> print(stored(pa.uint32()), stored(pa.dictionary(pa.int8(), pa.string())), stored(pa.uint64()))
    int64 string None
    """
    if pt.is_dictionary(kind):
        return stored(kind.value_type)
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    for test, found in (
        (pt.is_float16, pa.float32()),
        (pt.is_date, pa.date32()),
        (pt.is_string, pa.string()),
        (pt.is_large_string, pa.string()),
        (pt.is_string_view, pa.string()),
        (pt.is_binary, pa.binary()),
        (pt.is_large_binary, pa.binary()),
        (pt.is_fixed_size_binary, pa.binary()),
    ):
        if test(kind):
            return found
    vector = vector_type(kind)
    if vector is not None:
        return vector
    plain = (
        pt.is_signed_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_decimal128(kind)
    )
    return kind if plain else None


def same_names(names: Sequence[str]) -> tuple[str, str] | None:
    """Return two names that SQLite and DuckDB take for one, as they look at no case; None if there are none.

    >>> same_names(["id", "Score", "score"])
    ('Score', 'score')
    """
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            return other, name
    return None


def fits(kind: pa.DataType, there: pa.DataType) -> bool:
    """Say whether a column of a table holds all values of a type, exactly.

    >>> fits(pa.int32(), pa.int64()), fits(pa.int64(), pa.int32()), fits(pa.int64(), pa.float64())
    (True, False, False)
    """
    if kind == there or (pt.is_timestamp(kind) and pt.is_timestamp(there)):
        return kind == there or (there.unit == "us" and bool(kind.tz) == bool(there.tz))
    if pt.is_fixed_size_list(kind):  # and lists of any size
        return bool(pt.is_list(there) and there.value_type == kind.value_type)
    if kind in _WIDER and there in _WIDER:
        return _WIDER.index(kind) <= _WIDER.index(there)
    if pt.is_floating(there):
        return there == pa.float64() and kind in (pa.int8(), pa.int16(), pa.int32(), pa.float32())
    if pt.is_decimal(there):
        scale, whole = (
            (kind.scale, kind.precision - kind.scale) if pt.is_decimal(kind) else (0, _DIGITS.get(kind, 99))
        )
        return bool(scale <= there.scale and whole <= there.precision - there.scale)
    return False


def kept(kind: pa.DataType, there: pa.DataType | None) -> bool:
    """Say whether a column is inserted as it is: decimals of any scale, and what SQLite takes anyway."""
    return (
        there is None
        or pt.is_decimal(kind)
        or pt.is_boolean(kind)
        or pt.is_timestamp(kind)
        or pt.is_fixed_size_list(kind)
    )


def is_plain(kind: pa.DataType) -> bool:
    """Say whether SQLite has a type for it."""
    return not (pt.is_temporal(kind) or pt.is_decimal(kind) or pt.is_fixed_size_list(kind))
