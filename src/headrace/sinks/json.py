"""Parts as JSON lines, and columns as JSON text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.core.arrow.forms import as_lists, is_list_like
from headrace.core.arrow.plain import holds, plain, plain_type
from headrace.core.files.formats import compressed_suffixes
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Encoder
from headrace.sinks.files import probe_columns
from headrace.sinks.text import (
    TEXT,
    Lined,
    as_text_has_it,
    fill,
    join,
    literal,
    named_where_refused,
    put,
    unpacked,
)

# ------------------------------------------------------------ columns as text, in Arrow's own loops


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = re.compile("[\x00-\x1f]")


def encode(values: pa.Array) -> pa.Array:
    """Return one JSON text for each value, ``null`` for nulls; raises ``ArrowNotImplementedError``."""
    return fill(_encode(values), "null")


def encode_object(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """Return one JSON object for each row."""
    return _object(names, list(map(encode, columns)))


def _object(names: Sequence[str], encoded: Sequence[pa.Array]) -> pa.Array:
    pieces: list[pa.Array | str] = []
    for i, (name, column) in enumerate(zip(names, encoded, strict=True)):
        key = msgspec.json.encode(name).decode()
        pieces += ["{" if i == 0 else ",", f"{key}:", column]
    return join(*pieces, "}")


def _encode(values: pa.Array) -> pa.Array:
    if pt.is_dictionary(values.type):
        return _encode(values.dictionary).take(values.indices)
    values = plain(as_lists(values))
    kind = values.type
    if pt.is_floating(kind):
        return _float(values)
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_null(kind) or pt.is_duration(kind):
        return (values.cast(pa.int64()) if pt.is_duration(kind) else values).cast(TEXT)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _string(values.cast(TEXT))
    if pt.is_timestamp(kind):
        return _timestamp(as_text_has_it(values))
    if pt.is_date(kind) or pt.is_time(kind) or pt.is_decimal(kind):
        return join('"', as_text_has_it(values).cast(TEXT), '"')
    if pt.is_struct(kind) and kind.num_fields:
        return _only_valid(encode_object([field.name for field in kind], values.flatten()), values)
    if pt.is_map(kind) and pt.is_string(kind.key_type):
        pairs = values.cast(pa.list_(pa.struct([("k", kind.key_type), ("v", kind.item_type)])))
        keys, items = pairs.flatten().flatten()  # ``values.keys`` forgets that ``values`` is a slice
        return _listed(pairs, join(encode(keys), ":", encode(items)), "{", "}")
    if is_list_like(kind):
        return _listed(values, encode(values.flatten()), "[", "]")
    raise pa.ArrowNotImplementedError(f"JSON has no form for {kind}")


def _float(values: pa.Array) -> pa.Array:
    """Encode floats so that 1.0 stays one for readers that guess types; NaN and infinities become null."""
    text = values.cast(TEXT)
    text = pc.if_else(pc.match_substring_regex(text, "[.en]"), text, join(text, ".0"))
    return pc.if_else(pc.is_finite(values), text, _null())


def _timestamp(values: pa.Array) -> pa.Array:
    """Encode as ISO 8601 to the last digit of the unit; times with a zone as UTC, marked Z."""
    if values.type.tz is not None:
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    text = pc.replace_substring(values.cast(TEXT), " ", "T", max_replacements=1)
    return join('"', text, '"')


def _string(text: pa.Array) -> pa.Array:
    if _any(pc.match_substring_regex(text, r'[\\"\x00-\x1f]')):
        for char, escape in _ESCAPES.items():
            text = pc.replace_substring(text, char, escape)
        control = pc.match_substring_regex(text, r"[\x00-\x1f]")
        if _any(control):
            text = pc.replace_with_mask(text, control, _escaped(text.filter(control)))
    return join('"', text, '"')


def _escaped(text: pa.Array) -> pa.Array:
    """Escape the control characters that have no short form; rare, so in plain Python."""
    escaped = [_CONTROL.sub(lambda m: f"\\u{ord(m[0]):04x}", value) for value in text.to_pylist()]
    return pa.array(escaped, TEXT)


def _listed(values: pa.Array, items: pa.Array, start: str, stop: str) -> pa.Array:
    """Join the texts of all ``items`` list by list; ``values`` says how long each is and which are null."""
    lengths = pc.coalesce(pc.list_value_length(values).cast(pa.int64()), _zero()[0])
    offsets = pa.concat_arrays([_zero(), pc.cumulative_sum(lengths)])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), literal(","))
    return _only_valid(join(start, joined, stop), values)


def _only_valid(text: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), text, _null()) if values.null_count else text


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags).as_py())


@cache
def _null() -> pa.Scalar:
    return pa.nulls(1, TEXT)[0]


@cache
def _zero() -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])


_ROWS = 8192


@dataclass(frozen=True)
class Json(Lined):
    """One file of JSON lines for each shard: an object for each row, nulls written out.

    NaN and the infinities, which JSON lacks, become null. Times are ISO 8601 with every digit of their unit,
    those with a zone in UTC (``Z``); decimals are strings; durations integers of their unit; tensors nested
    lists; maps with string keys objects. Bytes are refused: JSON has no way to write them that readers share.
    """

    kind: ClassVar[str] = "JSON"
    suffixes = compressed_suffixes("json", "gzip", "zstd")

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for bytes, unions, intervals, and maps whose keys are no strings."""
        probe_columns(
            schema,
            self.kind,
            lambda each: encode_object(each.names, [pa.nulls(1, kind) for kind in each.types]),
        )

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _JsonEncoder(self.compressed(stream), schema.names)

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        return sum(chunk.count(b"\n") for chunk in unpacked(path, described))

    @classmethod
    def read_by(cls, described: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
        schema = pa.schema([(each.name, plain_type(each.type)) for each in schema])
        return {} if any(holds(each.type, _unread) for each in schema) else {"schema": schema}


def _unread(type_: pa.DataType) -> bool:
    """Say whether Arrow reads values of a type from other JSON than it is written as."""
    kinds = pt.is_date, pt.is_time, pt.is_duration, pt.is_float16, pt.is_map, pt.is_fixed_size_list
    return any(test(type_) for test in kinds)


class _JsonEncoder:
    """Rows to lines, some thousands at a time so that the text stays small beside the batch."""

    def __init__(self, stream: pa.NativeFile, names: list[str]) -> None:
        self._stream = stream
        self._names = names
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _ROWS):
            encoded = named_where_refused(batch.slice(start, _ROWS), Json.kind, encode)
            lines = join(_object(self._names, encoded), "\n")
            put(self._stream, lines)
            self._rows += len(lines)

    def close(self) -> int:
        self._stream.close()
        return self._rows
