"""The members of samples: types and values by the end of their names, and parts as archives of them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.annex.formats.images import FORMATS, encoded, refuse_pixels
from headrace.core.arrow.batch_formats import rows_of
from headrace.core.arrow.buffers import NUMPY_OF
from headrace.core.arrow.forms import RaggedTensorType, as_ragged
from headrace.core.arrow.plain import kind_of
from headrace.core.arrow.values import ConversionError, column_from
from headrace.core.files import safe_files
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Encoder, Format
from headrace.errors import SchemaMismatch, SinkError
from headrace.sinks.files import cannot_hold
from headrace.sinks.json import encode
from headrace.sources.images import ImageOptions
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


# ------------------------------------------------------------ parts as archives


KEY = "__key__"

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
        with safe_files.file(path) as file, opened(file) as tar:
            return sum(1 for _ in keys(tar))


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
    return kind_of(type_) == "text"


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
    if end not in WHOLE_NUMBERS:
        number = number or types.is_floating(type_) or types.is_boolean(type_)
    if end not in TEXTS and number:
        return lambda column: _texts(encode(column), column)
    if end not in WHOLE_NUMBERS and _is_text(type_):
        return lambda column: _texts(column, column)
    wanted = "text" if end in TEXTS else "whole numbers" if end in WHOLE_NUMBERS else "bytes, text or numbers"
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


# ------------------------------------------------------------ archives


class StrictHeader(tarfile.TarInfo):
    """A header that is damaged, or missing before the mark of the end, is an error; ``tarfile`` would just stop."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Any:
        """Read the next header."""
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            reason = "it was cut short" if "empty" in str(error) or "truncated" in str(error) else str(error)
            raise tarfile.ReadError(f"{reason}, near byte {tar.offset:,}") from error


def opened(file: IO[bytes], *, stream: bool = False) -> tarfile.TarFile:
    """Open an archive that is not compressed; a ``stream`` cannot be sought in."""
    return tarfile.open(fileobj=file, mode="r|" if stream else "r:", tarinfo=StrictHeader)


def member_of(name: str) -> tuple[str, str]:
    """Return the key and the column of a member; no column for what belongs to no sample.

    >>> member_of("a.b/0001.seg.png"), member_of("readme"), member_of("a/.hidden")
    (('a.b/0001', 'seg.png'), ('readme', ''), ('a/', ''))
    """
    folder, slash, last = name.rpartition("/")
    stem, _, column = last.partition(".")
    return folder + slash + stem, column if stem else ""


def keys(tar: tarfile.TarFile) -> Iterator[str]:
    """Yield the key of each sample."""
    last = None
    for member in tar:
        key, column = member_of(member.name)
        if member.isreg() and column and key != last:
            last = key
            yield key
