"""A file for each row: pixels as PNG, JPEG and the like, in the same commits as other parts."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch_formats import rows_of
from headrace.core.arrow.forms import RaggedTensorType, is_list_like
from headrace.core.arrow.plain import kind_of, plain_type
from headrace.core.files.artifacts import require
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Encoder, Format
from headrace.errors import SinkError
from headrace.sinks.files import cannot_hold, choose

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
_LONGEST = 150  # of a name; what stands before it has its place, too
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class Images(Format):
    """One image file for each row: the pixels of ``column``, in ``file_format``, named by the column ``names``.

    A name stands behind that of the shard, ``part-00000-<run>.<name>.png``, by which an output knows its files. Of a
    path only the last part counts, without the end that says its format, and what is no letter, digit, ``-`` or ``_``
    becomes ``_``. Without ``names``, rows are numbered in their shard.
    """

    column: str = "image"
    file_format: str = "png"
    names: str | None = None

    kind: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        choose(self.file_format, tuple(FORMATS), "file_format")
        require("PIL", "images", "write_images")

    @property
    def suffix(self) -> str:
        return self.file_format

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` unless the column has pixels, and that of names is text or whole numbers."""
        refuse_pixels("write_images", schema.field(self.column))
        if self.names is not None:
            field = schema.field(self.names)
            if kind_of(field.type) != "text" and not pa.types.is_integer(plain_type(field.type)):
                raise cannot_hold("write_images", field, "names are texts or whole numbers")

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _ImageEncoder(stream, schema.field(self.column), FORMATS[self.file_format])

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        return 1

    def file_names(self) -> Callable[[pa.RecordBatch], Sequence[str]]:
        return _Names(self.names)


class _ImageEncoder:
    """Writes one row."""

    def __init__(self, stream: StagedStream, field: pa.Field, form: str) -> None:
        self._stream = stream
        self._field = field
        self._form = form

    def write(self, batch: pa.RecordBatch) -> None:
        column = batch.column(batch.schema.get_field_index(self._field.name))
        (row,) = rows_of(pa.RecordBatch.from_arrays([column], [""]))
        if row[""] is None:
            raise SinkError(
                f"Cannot write an image: column {self._field.name!r} is null. Filter such rows in a step before."
            )
        self._stream.write(encoded(row[""], self._form, self._field))

    def close(self) -> int:
        return 1


class _Names:
    """Names the rows of one attempt: by a column, or by their numbers."""

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._rows = 0
        self._names: set[str] = set()

    def __call__(self, batch: pa.RecordBatch) -> Sequence[str]:
        first, column = self._rows, self._column
        self._rows += batch.num_rows
        if column is None:
            return [f"{row:06}" for row in range(first, self._rows)]
        values = batch.column(batch.schema.get_field_index(column)).to_pylist()
        return [self._name(column, value) for value in values]

    def _name(self, column: str, value: Any) -> str:
        last = "" if value is None else str(value).rpartition("/")[2]
        stem, _, end = last.rpartition(".")
        name = _OTHER.sub("_", stem if stem and end.lower() in FORMATS else last)
        if not name or len(name) > _LONGEST or name in self._names:
            why = "it is null or empty" if not name else f"it has more than {_LONGEST} characters"
            if name in self._names:
                why = f"another row of the same part has the name {name!r}, too"
            raise SinkError(
                f"Cannot name an image by {value!r} of column {column!r}: {why}. Only the last part of a name is "
                "used, and in it only letters, digits, - and _."
            )
        self._names.add(name)
        return name


def refuse_pixels(kind: str, field: pa.Field) -> None:
    """Raise ``SinkError`` unless a column holds arrays (height, width) or (height, width, channels) of uint8."""
    type_, axes = field.type, 0
    if isinstance(type_, (pa.FixedShapeTensorType, RaggedTensorType)):
        axes = type_.ndim if isinstance(type_, RaggedTensorType) else len(type_.shape)
        type_ = type_.value_type
    while is_list_like(type_):
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
