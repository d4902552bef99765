"""Parts as TFRecord files of ``tf.train.Example``, as TensorFlow and ``read_tfrecords`` read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.annex.formats.tfrecords import framing
from headrace.core.arrow.forms import is_list_like
from headrace.core.arrow.plain import kind_of, plain, plain_type
from headrace.core.files.formats import compressed_suffixes
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Encoder
from headrace.errors import SinkError
from headrace.sinks.files import cannot_hold
from headrace.sinks.text import Compressed

Values = Sequence[Any]


@dataclass(frozen=True)
class TFRecords(Compressed):
    """One file of TFRecords for each shard: a ``tf.train.Example`` for each row, and a feature for each column.

    Texts and bytes are lists of bytes, integers and booleans of int64, floats of float32; a column of lists has one
    value for each element. A null is a feature without values, of no kind. The same rows give the same bytes.
    """

    kind: ClassVar[str] = "TFRecord"
    suffixes = compressed_suffixes("tfrecords", "gzip")

    def __post_init__(self) -> None:
        super().__post_init__()
        framing.needs_libraries("write_tfrecords")

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for what is neither bytes, text, numbers or booleans, nor a list of these."""
        for field in schema:
            _list_of(field)

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _ExampleEncoder(self.compressed(stream), schema)


class _ExampleEncoder:
    """Writes each row as a record."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema) -> None:
        self._stream = stream
        self._lists = [(field, *_list_of(field)) for field in schema]
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        example_class = framing.example_class()
        columns = []
        for (field, kind, values_of), column in zip(self._lists, batch.columns, strict=True):
            columns.append((field.name, kind, values_of(column)))
        for row in range(batch.num_rows):
            example = example_class()
            features = example.features.feature
            for name, kind, column in columns:
                feature, values = features[name], column[row]
                if values is not None:
                    into = getattr(feature, kind)
                    into.SetInParent()  # no values are another thing than a null
                    into.value.extend(values)
            self._stream.write(framing.framed(example.SerializeToString(deterministic=True)))
            self._rows += 1

    def close(self) -> int:
        self._stream.close()
        return self._rows


def _list_of(field: pa.Field) -> tuple[str, Callable[[pa.Array], Values]]:
    """Return the list of a feature that holds a column, and what makes such lists; None stands for a null."""
    types, type_ = pa.types, field.type
    if isinstance(type_, pa.FixedShapeTensorType) and len(type_.shape) == 1:
        type_ = type_.storage_type
    many = is_list_like(type_)
    of = plain_type(type_.value_type if many else type_)
    if isinstance(type_, pa.BaseExtensionType):
        raise cannot_hold(
            "TFRecord",
            field,
            "a feature has one axis: flatten the arrays, and keep their shape in another column",
        )
    if types.is_null(of):
        return "", lambda column: [None] * len(column)
    if kind_of(of) in ("text", "binary"):
        kind, cast = "bytes_list", pa.large_binary()
    elif types.is_integer(of) or types.is_boolean(of):
        kind, cast = "int64_list", pa.int64()
    elif types.is_floating(of):
        kind, cast = "float_list", pa.float32()
    else:
        raise cannot_hold("TFRecord", field, "a feature is bytes, text, numbers, or a list of these")
    return kind, lambda column: _lists(column, field, cast, many=many)


def _lists(column: pa.Array, field: pa.Field, cast: pa.DataType, *, many: bool) -> Values:
    column = plain(column)
    flat = plain(column.flatten()) if many else column
    if many and flat.null_count:
        raise SinkError(
            f"TFRecord cannot hold column {field.name!r} of type {field.type}: one of its lists has a null in it. "
            "Replace the null with a value, or leave the element out, in a step."
        )
    values = _cast(flat, field, cast).to_pylist()
    if not many:
        return [None if value is None else (value,) for value in values]
    made: list[Any] = []
    at = 0
    for size, there in zip(column.value_lengths().to_pylist(), column.is_valid().to_pylist(), strict=True):
        made.append(values[at : at + size] if there else None)
        at += size if there else 0
    return made


def _cast(flat: pa.Array, field: pa.Field, cast: pa.DataType) -> pa.Array:
    if pa.types.is_float64(flat.type):
        numbers = flat.drop_null().to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            same = numbers.astype(np.float32).astype(np.float64) == numbers
        rounded = numbers[~(same | np.isnan(numbers))]
        if len(rounded):
            raise SinkError(
                f"TFRecord cannot hold column {field.name!r} of type {field.type}: its fractions are float32, which "
                f"would round {float(rounded[0])!r}. If they may be rounded, make them float32 in a step: "
                f".astype('float32')."
            )
        return flat.cast(cast, safe=False)
    try:
        return flat.cast(cast)
    except pa.ArrowException as error:
        raise SinkError(
            f"TFRecord cannot hold column {field.name!r} of type {field.type}: its integers are int64, and {error}."
        ) from error
