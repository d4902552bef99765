"""Parts as tar archives of samples, as WebDataset and ``read_webdataset`` read them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.arrow.batch_formats import NUMPY_OF, rows_of
from headrace.core.arrow.ragged import RaggedTensorType
from headrace.core.files import safe_files, tars
from headrace.core.files.staged import StagedStream
from headrace.core.ports import Encoder, Format
from headrace.errors import SinkError
from headrace.sinks.files import cannot_hold
from headrace.sinks.images import FORMATS, encoded, refuse_pixels
from headrace.sinks.jsontext import encode

KEY = "__key__"
_TEXTS = ("txt", "text")
_WHOLE_NUMBERS = ("cls", "cls2")

Bytes = Sequence[bytes | None]


@dataclass(frozen=True)
class WebDataset(Format):
    """One tar archive for each shard; a row is a sample, and each of its columns a member ``<key>.<column>``.

    The column ``__key__`` has the keys; without it, they are made of shard and row. How a column's values are packed,
    the end of its name says: ``txt``, ``cls``, ``json``, ``npy``, or ``png``, ``jpg`` and the like for pixels. Bytes
    are members as they are; texts, numbers and booleans of other names are text. A null is no member. The same rows
    give the same bytes.
    """

    kind: ClassVar[str] = "webdataset"
    suffix: ClassVar[str] = "tar"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that cannot be packed as its name says."""
        columns = [field for field in schema if field.name != KEY]
        if not columns:
            raise SinkError("A sample has members: keep at least one column besides __key__.")
        for field in schema:
            if field.name == KEY:
                if not _is_text(field.type):
                    raise cannot_hold("webdataset", field, "keys are texts")
                continue
            parts = field.name.split(".")
            if "/" in field.name or "\0" in field.name or not all(parts) or field.name.startswith("__"):
                raise cannot_hold("webdataset", field, "its name cannot be the end of a member's name")
            _packer(field)

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _TarEncoder(stream, schema)

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        with safe_files.file(path) as file, tars.opened(file) as tar:
            return sum(1 for _ in tars.keys(tar))


class _TarEncoder:
    """Writes each row as members of an archive; samples without keys are named after the part and their row."""

    def __init__(self, stream: StagedStream, schema: pa.Schema) -> None:
        self._packers = {field.name: _packer(field) for field in schema if field.name != KEY}
        self._tar = tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)  # type: ignore[call-overload] # noqa: SIM115
        self._part = stream.label.replace(".", "_")
        self._rows = 0
        self._keys: set[str] = set()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch at once."""
        at = batch.schema.get_field_index(KEY)
        keys: Sequence[Any] = [None] * batch.num_rows if at < 0 else batch.column(at).to_pylist()
        columns = {name: pack(batch.column(name)) for name, pack in self._packers.items()}
        for row, key in enumerate(keys):
            name = self._checked(key) if at >= 0 else f"{self._part}-{self._rows:06}"
            for column, values in columns.items():
                data = values[row]
                if data is not None:
                    member = tarfile.TarInfo(f"{name}.{column}")  # of no time and no owner
                    member.size, member.mode = len(data), 0o644
                    self._tar.addfile(member, io.BytesIO(data))
            self._rows += 1

    def close(self) -> int:
        """Write the end of the archive."""
        self._tar.close()
        return self._rows

    def _checked(self, key: str | None) -> str:
        if key is None or key in self._keys or not _is_key(key):
            why = "is there twice in one archive" if key in self._keys else "cannot be a key"
            raise SinkError(
                f"Cannot write a sample whose __key__ is {key!r}: it {why}. A key is a relative path without a dot "
                "in its last part, and each row has its own."
            )
        self._keys.add(key)
        return key


def _is_key(key: str) -> bool:
    parts = key.split("/")
    return not ("\0" in key or "." in parts[-1] or any(part in ("", ".", "..") for part in parts))


# ---------------------------------------------------------------- columns to bytes


def _is_text(type_: pa.DataType) -> bool:
    kind = type_.value_type if pa.types.is_dictionary(type_) else type_
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _packer(field: pa.Field) -> Callable[[pa.Array], Bytes]:
    """Return what makes bytes of a column's values; raises ``SinkError`` where they do not fit its name."""
    types, type_ = pa.types, field.type
    end = field.name.rpartition(".")[2].lower()
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return pa.Array.to_pylist  # type: ignore[no-any-return]
    if types.is_null(type_):
        return lambda column: [None] * len(column)
    if end in FORMATS:
        refuse_pixels("webdataset", field)
        return lambda column: _per_row(column, lambda value: encoded(value, FORMATS[end], field))
    if end == "npy":
        if _numpy_type(type_) is None:
            raise cannot_hold("webdataset", field, "only numbers and arrays of them are .npy")
        return lambda column: _per_row(column, lambda value: _npy(value, _numpy_type(type_)))
    if end == "json":
        try:
            encode(pa.nulls(1, type_))
        except pa.ArrowException as error:
            raise cannot_hold("webdataset", field, str(error)) from error
        return lambda column: _texts(encode(column), column)
    number = types.is_integer(type_)
    if end not in _WHOLE_NUMBERS:
        number = number or types.is_floating(type_) or types.is_boolean(type_)
    if end not in _TEXTS and number:
        return lambda column: _texts(encode(column), column)
    if end not in _WHOLE_NUMBERS and _is_text(type_):
        return lambda column: _texts(column, column)
    wanted = (
        "text" if end in _TEXTS else "whole numbers" if end in _WHOLE_NUMBERS else "bytes, text or numbers"
    )
    raise cannot_hold(
        "webdataset",
        field,
        f"a member of this name holds {wanted}; rename it, to {field.name}.json or .npy say",
    )


def _texts(texts: pa.Array, column: pa.Array) -> Bytes:
    packed = texts.cast(pa.large_string()).cast(pa.large_binary())
    values: Bytes = pc.if_else(column.is_null(), None, packed).to_pylist()
    return values


def _per_row(column: pa.Array, pack: Callable[[Any], bytes]) -> Bytes:
    rows = rows_of(pa.RecordBatch.from_arrays([column], [""]))
    return [None if row[""] is None else pack(row[""]) for row in rows]


def _npy(value: Any, dtype: Any) -> bytes:
    into = io.BytesIO()
    np.lib.format.write_array(into, np.asarray(value, dtype), allow_pickle=False)
    return into.getvalue()


def _numpy_type(type_: pa.DataType) -> Any:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    while isinstance(type_, (pa.FixedShapeTensorType, RaggedTensorType)) or any(
        each(type_) for each in lists
    ):
        type_ = type_.value_type
    return np.bool_ if pa.types.is_boolean(type_) else NUMPY_OF.get(type_)
