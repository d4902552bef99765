"""The bytes of a lake's table: its Arrow types, what footers say of its columns, and how parts are written."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from headrace.annex.lakes.places import within
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd, sync_folder
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Encoder, Format, Sink
from headrace.errors import SinkError
from headrace.sinks.parquet import Parquet, ParquetEncoder
from headrace.sinks.parquet_joined import JoinedEncoder

if TYPE_CHECKING:
    from headrace.core.parquet.footer import Chunk, Footer

_SAME = (
    pt.is_boolean,
    pt.is_int8,
    pt.is_int16,
    pt.is_int32,
    pt.is_int64,
    pt.is_float32,
    pt.is_float64,
    pt.is_date32,
)
_MADE = (
    (pt.is_uint8, pa.int16()),
    (pt.is_uint16, pa.int32()),
    (pt.is_uint32, pa.int64()),
    (pt.is_float16, pa.float32()),
    (pt.is_date64, pa.date32()),
    (pt.is_string, pa.string()),
    (pt.is_large_string, pa.string()),
    (pt.is_string_view, pa.string()),
    (pt.is_binary, pa.binary()),
    (pt.is_large_binary, pa.binary()),
    (pt.is_binary_view, pa.binary()),
    (pt.is_fixed_size_binary, pa.binary()),
)
_WIDER = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def stored(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column is written, which holds all its values; None if no table has one.

    Vectors become lists, dictionaries their values, times microseconds.

    >>> print(stored(pa.uint32()), stored(pa.list_(pa.float32(), 3)), stored(pa.uint64()))
    int64 list<element: float> None
    """
    if isinstance(kind, pa.BaseExtensionType):
        return stored(kind.storage_type)
    if pt.is_dictionary(kind):
        return stored(kind.value_type)
    if pt.is_decimal32(kind) or pt.is_decimal64(kind) or pt.is_decimal128(kind):
        return pa.decimal128(kind.precision, kind.scale) if 0 <= kind.scale <= kind.precision else None
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        inner = stored(kind.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if pt.is_struct(kind):
        kinds = [(field.name, stored(field.type)) for field in kind]
        found = [pa.field(name, inner) for name, inner in kinds if inner is not None]
        return pa.struct(found) if kinds and len(found) == len(kinds) else None
    if pt.is_map(kind):
        key, item = stored(kind.key_type), stored(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if any(test(kind) for test in _SAME):
        return kind
    return next((made for test, made in _MADE if test(kind)), None)


def fits(kind: pa.DataType, there: pa.DataType) -> bool:
    """Say whether a column of a table holds all values of a stored type, exactly.

    >>> fits(pa.int32(), pa.int64()), fits(pa.int64(), pa.int32()), fits(pa.int64(), pa.float64())
    (True, False, False)
    """
    if kind == there or (pt.is_null(kind) and not pt.is_null(there)):
        return True
    if kind in _WIDER and there in _WIDER:
        return bool(_WIDER.index(kind) <= _WIDER.index(there))
    if pt.is_floating(kind) and pt.is_floating(there):
        return bool(there == pa.float64())
    if pt.is_decimal(kind) and pt.is_decimal(there):
        whole = kind.precision - kind.scale
        return bool(kind.scale <= there.scale and whole <= there.precision - there.scale)
    if pt.is_list(kind) and pt.is_list(there):
        return fits(kind.value_type, there.value_type)
    if pt.is_map(kind) and pt.is_map(there):
        return fits(kind.key_type, there.key_type) and fits(kind.item_type, there.item_type)
    if pt.is_struct(kind) and pt.is_struct(there):
        names = [field.name for field in kind] == [field.name for field in there]
        return bool(names and all(fits(a.type, b.type) for a, b in zip(kind, there, strict=True)))
    return False


def compact(kind: pa.DataType) -> pa.DataType:
    """Return a type with 32-bit offsets where a library gives 64-bit ones.

    >>> print(compact(pa.large_list(pa.large_string())))
    list<item: string>
    """
    if pt.is_large_string(kind):
        return pa.string()
    if pt.is_large_binary(kind):
        return pa.binary()
    if pt.is_list(kind) or pt.is_large_list(kind):
        field = kind.value_field
        return pa.list_(pa.field(field.name, compact(field.type), field.nullable))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, compact(field.type), field.nullable) for field in kind])
    return pa.map_(compact(kind.key_type), compact(kind.item_type)) if pt.is_map(kind) else kind


_AT_ONCE = 16
_LONGEST = 32  # characters of a text


def footers(files: Sink, names: Sequence[str]) -> list[pq.FileMetaData]:
    """Read the footers of parts."""

    def footer(name: str) -> pq.FileMetaData:
        with files.storage.opened(name) as data:
            return pq.read_metadata(data)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-footers") as threads:
        return list(threads.map(footer, names))


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return the smallest and the largest value, and the number of nulls, of columns that say so exactly.

    Integers, dates, booleans and short texts have a smallest and a largest. Of floats, NaN would stand outside both.
    Where a column with values has none, no column gets them: deltalake's filters of a dataset take what is missing
    beside other ranges for null, and pass over all rows.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    whole = True
    schema = footer.schema
    for number in range(len(schema)):
        column = schema.column(number)
        name = column.path
        # Columns of a struct or a list: nobody looks at them.
        if name != column.name or column.max_repetition_level:
            continue
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if all(each is not None and each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        full = [each for each in found if each is None or each.num_values]
        ranges = [(each.min, each.max) for each in full if each is not None and each.has_min_max]
        if len(ranges) == len(full) and ranges:
            low[name], high[name] = min(least for least, _ in ranges), max(most for _, most in ranges)
        if full and not (name in low and _exact(low[name]) and _exact(high[name])):
            whole = whole and column.logical_type.type == "NONE" and column.physical_type == "BYTE_ARRAY"
    if not whole:
        return {"nullCount": nulls}
    return {
        "minValues": {name: value for name, value in low.items() if _exact(value)},
        "maxValues": {name: value for name, value in high.items() if _exact(value)},
        "nullCount": nulls,
    }


_SYNCED = 10


def sync_newest(table: str, names: Sequence[str]) -> None:
    """Make what was written last in folders of a table survive a loss of power, and all names there.

    Another writer may remove a file of its own meanwhile.
    """
    for folder in filter(safe_files.is_folder, [within(table, name) for name in names]):
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found.append((entry.stat().st_mtime_ns, entry.path))
        for _, path in sorted(found)[-_SYNCED:]:
            with contextlib.suppress(FileNotFoundError), safe_files.file(path) as file:
                sync_fd(file.fileno())
        sync_folder(folder)
    sync_folder(table)


def _exact(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    plain = type(value) in (int, bool, datetime.date)
    return plain


# ---------------------------------------------------------------- the bytes of a part

MARKS = b"headrace."
"""How metadata of a part begin that are about the part itself, and stay when its columns get their types."""


class Typed(Protocol):
    """A table, as far as the bytes of its parts depend on it."""

    what: ClassVar[str]

    @property
    def place(self) -> str:
        """Where the table is."""

    def stored(self, schema: pa.Schema, *, part: bool) -> pa.Schema:
        """Return columns with the types in which they are written."""

    def typed(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a part as files have them."""

    def required(self) -> Collection[str]:
        """Return the columns in which the table takes no nulls."""


@dataclass(frozen=True)
class LakeFormat(Format):
    """Parquet in the types of a table; a value that would change is an error."""

    table: Typed
    parquet: Parquet

    suffix: ClassVar[str] = Parquet.suffix

    @property
    def kind(self) -> str:
        return self.table.what

    def options(self) -> dict[str, Any]:
        return self.parquet.options()

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for what Parquet cannot hold."""
        self.parquet.check_schema(self.table.stored(schema, part=True))

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return self._encoder(stream, schema)

    def _encoder(
        self, stream: StagedStream | io.BytesIO, schema: pa.Schema, group_rows: int | None = None
    ) -> Encoder:
        made = self.table.typed(schema)
        about = {key: value for key, value in (schema.metadata or {}).items() if key.startswith(MARKS)}
        made = made.with_metadata({**(made.metadata or {}), **about}) if about else made
        return _TypedEncoder(self.table, ParquetEncoder(self.parquet, stream, made, group_rows), made)

    def why_not_joined(self) -> str:
        return self.parquet.why_not_joined()

    def why_not_copied(self, field: pa.Field, chunk: Chunk) -> str:
        """Say why a chunk of a column cannot be copied; "" if it can. Its form is that of ``footer_like``."""
        if chunk.nulls != 0 and field.name in self.table.required():
            return "the table takes no nulls there"
        return self.parquet.why_not_copied(field, chunk)

    def footer_like(self, schema: pa.Schema, old_times: Collection[str] = ()) -> Footer:
        """Return what the footer of a part with these columns says: with the types of the table, none is INT96."""
        return self.parquet.footer_like(self.table.typed(schema))

    def open_joined(
        self,
        stream: StagedStream,
        schema: pa.Schema,
        copied: Mapping[str, str],
        old_times: Collection[str] = (),
    ) -> JoinedEncoder:
        """Return an encoder into which columns are copied."""
        return JoinedEncoder(stream, schema, copied, self.footer_like(schema), self._encoder)


class _TypedEncoder:
    """Brings batches to the types of the table before they are encoded."""

    def __init__(self, table: Typed, encoder: Encoder, schema: pa.Schema) -> None:
        self._encoder = encoder
        self._schema = schema
        self._place = f"{table.what} {table.place}"
        self._required = [name for name in schema.names if name in table.required()]
        self.close = encoder.close

    def write(self, batch: pa.RecordBatch) -> None:
        """Cast, and refuse nulls where the table has none."""
        self._encoder.write(typed(batch, self._schema, self._required, self._place))


def typed(batch: pa.RecordBatch, schema: pa.Schema, required: Collection[str], place: str) -> pa.RecordBatch:
    """Return rows with the types of a table; a value that would change is an error, as is a null in ``required``."""
    columns = [cast(column, about.type) for column, about in zip(batch.columns, schema, strict=True)]
    made = pa.RecordBatch.from_arrays(columns, schema=schema)
    for name in required:
        if name in schema.names and made.column(name).null_count:
            raise SinkError(
                f"The column {name!r} has nulls, and the {place} takes none there. Fill them in a step, or "
                "drop such rows."
            )
    return made


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the type in which it is written; a value that would change is Arrow's error."""
    if isinstance(column, pa.ExtensionArray) and column.type != kind:
        column = column.storage
    return column if column.type == kind else pc.cast(column, kind)
