"""What the members of a sample are, by the end of their names: types, and values of their bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.ragged import RaggedTensorType, as_ragged
from headrace.core.arrow.values import ConversionError, column_from
from headrace.errors import SchemaMismatch
from headrace.sources.images.options import ImageOptions
from headrace.sources.schemas import unify

TEXTS = ("txt", "text")
WHOLE_NUMBERS = ("cls", "cls2")
IMAGES = ("png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
PIXELS = RaggedTensorType(pa.uint8(), 3)
_RGB = ImageOptions(None, "RGB", False, 89_478_485)


def ending(column: str) -> str:
    """Return what says how a column is packed: ``png`` of ``seg.png``."""
    return column.rpartition(".")[2].lower()


def fixed_type(column: str, *, decode: bool) -> pa.DataType | None:
    """Return the type of a column; None where only values show it."""
    end = ending(column)
    if not decode:
        return pa.binary()
    if end in TEXTS:
        return pa.string()
    if end in WHOLE_NUMBERS:
        return pa.int64()
    if end in IMAGES:
        return PIXELS
    return None if end in ("json", "npy") else pa.binary()


def value_of(column: str, data: bytes, *, decode: bool) -> pa.Array:
    """Return a member as a column of one row; raises ``ValueError`` for what cannot be unpacked."""
    end = ending(column) if decode else ""
    if end in TEXTS:
        return pa.array([data.decode()], pa.string())
    if end in WHOLE_NUMBERS:
        return pa.array([int(data)], pa.int64())
    if end in IMAGES:
        return column_from([_pixels(data)], ragged=True)
    if end == "json":
        return column_from([_parsed(data)])
    if end == "npy":
        return _array(data)
    return pa.array([data], pa.binary())


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _array(data: bytes) -> pa.Array:
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of several arrays")
    return column_from([array], ragged=True) if array.ndim else column_from(array.reshape(1))


def _pixels(data: bytes) -> np.ndarray[Any, Any]:
    from headrace.sources.images import reader

    with reader.opened("", io.BytesIO(data), _RGB.max_pixels) as image:
        return np.asarray(reader.made(image, _RGB))


def type_over(column: str, found: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """Return the type that holds the values of all samples, each of them with its name."""
    try:
        schemas = [(name, pa.schema([pa.field(column, type_)])) for name, type_ in found]
        return unify(schemas).field(0).type if schemas else pa.null()
    except SchemaMismatch:
        raise SchemaMismatch(
            f"The samples do not fit together: column {column!r} is {found[0][1]} in {found[0][0]}, and of another "
            "type elsewhere. Read the bytes with decoder=None, and unpack them in a function."
        ) from None


def fitted(value: pa.Array, type_: pa.DataType) -> pa.Array:
    """Bring a column of one row to the settled type; raises ``ValueError`` where a value would be lost."""
    if value.type == type_:
        return value
    if isinstance(type_, RaggedTensorType):
        value = as_ragged(value)
        if value.type == type_:
            return value
        if pa.types.is_null(value.type):
            return pa.nulls(1, type_)
    try:
        pair = [("", pa.schema([pa.field("", each)])) for each in (type_, value.type)]
        if unify(pair).field(0).type != type_:
            raise ValueError(f"it is {value.type}, and the column {type_}")
        return value.cast(type_)
    except (SchemaMismatch, pa.ArrowException, ConversionError) as error:
        raise ValueError(f"it is {value.type}, and the column {type_}") from error
