"""Pixels as the bytes of an image file. Pillow encodes them, and is imported when it does."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.ragged import RaggedTensorType
from headrace.errors import SinkError
from headrace.sinks.files import cannot_hold

FORMATS = {
    "png": "PNG",
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "webp": "WEBP",
    "bmp": "BMP",
    "tif": "TIFF",
    "tiff": "TIFF",
}
"""Pillow's names of formats, by the ends of files' names."""

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def refuse_pixels(kind: str, field: pa.Field) -> None:
    """Raise ``SinkError`` unless a column holds arrays (height, width) or (height, width, channels) of uint8."""
    type_, axes = field.type, 0
    if isinstance(type_, (pa.FixedShapeTensorType, RaggedTensorType)):
        axes = type_.ndim if isinstance(type_, RaggedTensorType) else len(type_.shape)
        type_ = type_.value_type
    while pa.types.is_fixed_size_list(type_) or pa.types.is_list(type_) or pa.types.is_large_list(type_):
        type_, axes = type_.value_type, axes + 1
    if not pa.types.is_uint8(type_) or axes not in (2, 3):
        why = "an image is an array (height, width) or (height, width, channels) of uint8, or the bytes of a file"
        raise cannot_hold(kind, field, why)


def encoded(value: Any, form: str, field: pa.Field) -> bytes:
    """Return the bytes of an image file in one of Pillow's formats."""
    from PIL import Image

    array = np.asarray(value, np.uint8)
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in _MODES or 0 in array.shape:
        raise SinkError(
            f"Cannot write an array of shape {array.shape} in column {field.name!r} as an image: an image is "
            "(height, width) or (height, width, channels) with 1 to 4 channels."
        )
    into = io.BytesIO()
    try:
        Image.fromarray(array.reshape(array.shape[:2]) if channels == 1 else array).save(into, form)
    except (OSError, ValueError) as error:
        raise SinkError(f"Cannot write column {field.name!r} as {form}: {error}.") from error
    return into.getvalue()
