"""Parts as Parquet files."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from headrace.core.arrow.batch import with_present_values
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.forms import axes, changed_within, is_list_like
from headrace.core.arrow.plain import columns_within, holds, is_nested, plain, types_within
from headrace.core.files import safe_files
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Format
from headrace.errors import ArgumentError
from headrace.sinks.files import cannot_hold, choose, probe_columns
from headrace.sinks.parquet_joined import JoinedEncoder, OldTimes, parsed

if TYPE_CHECKING:
    from headrace.core.parquet.footer import Chunk, Footer


# ------------------------------------------------------------ what cannot be read back as what it was


NULL_VECTOR = (
    f"a whole vector is null, and pyarrow {pa.__version__} cannot read such a file (apache/arrow issue 35692). Use a "
    "vector of NaN, or a variable-size list that is null"
)
NULL_ARRAY = (
    f"an array is null, and pyarrow {pa.__version__} cannot read such a file (apache/arrow issue 35692). Use an "
    "array without values instead, such as `numpy.zeros((0, 4))`, or drop such rows"
)
_NO_VALUES = (
    f"its vectors have no values, and pyarrow {pa.__version__} cannot read such a file. Use a variable-size list "
    "that is empty"
)
_SECONDS = "Parquet has no seconds, and would lose the shape of these arrays; `astype('M8[ms]')` preserves it"

_NESTED_VALUES = (
    "Parquet has no dictionary of lists or dicts; in map_batches(batch_format='pyarrow'), dictionary_decode() makes "
    "plain ones of it"
)


def holds_vectors(kind: pa.DataType) -> bool:
    """Say whether a type is, or has within it, one of arrays of one length."""
    return holds(kind, pt.is_fixed_size_list)


def unreadable(kind: pa.DataType) -> str:
    """Say why a column of this type would make a file that cannot be read, or not as what it was."""
    if axes(kind) and kind.value_type == pa.timestamp("s"):
        return _SECONDS
    if pt.is_fixed_size_list(kind) and not kind.list_size:
        return _NO_VALUES
    if pt.is_dictionary(kind) and is_nested(kind.value_type):
        return _NESTED_VALUES
    return next((why for each in types_within(kind) if (why := unreadable(each))), "")


def has_null_vector(values: pa.Array) -> bool:
    """Say whether one of these arrays is null."""
    if not holds_vectors(values.type):
        return False
    values = plain(values)
    if pt.is_fixed_size_list(values.type) and values.null_count:
        return True
    return any(map(has_null_vector, columns_within(values)))


@functools.cache
def null_vectors_can_be_read() -> bool:
    """Try whether pyarrow reads such arrays back."""
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, pa.schema([("x", pa.list_(pa.int8(), 1))])) as writer:
        writer.write_table(pa.Table.from_arrays([pa.nulls(1, pa.list_(pa.int8(), 1))], ["x"]))
    try:
        pq.ParquetFile(pa.BufferReader(buffer.getvalue())).read()
    except pa.ArrowInvalid:
        return False
    return True


AUTO = "auto"
_COMPRESSIONS = (AUTO, "snappy", "zstd", "gzip", "lz4", "brotli", "none")

_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 32 << 20
_BUFFER = 1 << 20  # page headers are tiny: without a buffer each costs a call into Python
_SAMPLE = 2048


@dataclass(frozen=True)
class Parquet(Format):
    """Parquet files.

    ``row_group_rows`` cuts row groups of exactly that many rows, the last of a file aside. Without it
    a row group ends at about 128 k rows or 32 MiB, whichever comes first. ``compression`` ``"auto"``: snappy, and
    columns that are copied from the input keep what they have. ``compression_level`` means what it means to pyarrow.

    Columns whose values hardly repeat are written without a dictionary: Arrow would build one, find it too
    big and drop it, which costs ten times the writing of a column of random floats and makes it no smaller.

    >>> Parquet(compression="ZSTD").codec
    'zstd'
    """

    compression: str | None = "auto"
    compression_level: int | None = None
    row_group_rows: int | None = None

    kind: ClassVar[str] = "Parquet"
    suffix: ClassVar[str] = "parquet"

    def __post_init__(self) -> None:
        object.__setattr__(self, "compression", (self.compression or "none").lower())
        choose(self.compression, _COMPRESSIONS, "compression")
        if self.row_group_rows is not None and self.row_group_rows < 1:
            raise ArgumentError(f"row_group_rows={self.row_group_rows} is not a positive number of rows.")
        if self.compression_level is None:
            return
        try:
            self._try(pa.schema([("x", pa.int8())]))
        except (pa.ArrowException, OSError, TypeError) as error:
            raise ArgumentError(
                f"compression={self.compression!r} with compression_level={self.compression_level!r} "
                f"is refused by pyarrow: {error}"
            ) from error

    @property
    def codec(self) -> str:
        """The codec of columns that are encoded."""
        return "snappy" if self.compression == AUTO else str(self.compression)

    def why_not_joined(self) -> str:
        if self.row_group_rows is not None:
            return "row_group_rows= cuts row groups"
        return "a compression_level= is asked for" if self.compression_level is not None else ""

    def why_not_copied(self, field: pa.Field, chunk: Chunk) -> str:
        codec = chunk.codec
        if chunk.nulls != 0 and holds_vectors(field.type):
            return "its vectors may be null, which no reader of this output could read"
        if codec is None:
            return "it has an old compression that readers treat differently"
        if self.compression in (AUTO, codec):
            return ""
        return f"it is compressed with {codec}, and compression={self.compression!r} is asked for"

    def footer_like(self, schema: pa.Schema, old_times: Collection[str] = ()) -> Footer:
        """Return what the footer of a part with these columns says; ``old_times`` are INT96 there."""
        stream = pa.BufferOutputStream()
        self.open_writer(stream, schema, True).close()
        footer = parsed(memoryview(stream.getvalue()))
        if not old_times:
            return footer
        old = pa.schema([field for field in schema if field.name in old_times])
        return footer.with_columns_of(parsed(self.as_int96(pa.Table.from_batches([], old), [])))

    def open_joined(
        self,
        stream: StagedStream,
        schema: pa.Schema,
        copied: Mapping[str, str],
        old_times: Collection[str] = (),
    ) -> JoinedEncoder:
        like = self.footer_like(schema, old_times)
        encoder = partial(ParquetEncoder, self)
        return JoinedEncoder(stream, schema, copied, like, encoder, OldTimes(old_times, self.as_int96))

    def as_int96(self, table: pa.Table, groups: Sequence[int]) -> memoryview:
        """Return a file of times, in row groups of so many rows."""
        stream = pa.BufferOutputStream()
        with self.open_writer(stream, table.schema, True, old_times=True) as writer:
            at = 0
            for rows in groups:
                writer.write_table(table.slice(at, rows), row_group_size=rows)
                at += rows
        return memoryview(stream.getvalue())

    def options(self) -> dict[str, Any]:
        return {**super().options(), "compression": self.codec}

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for what Parquet cannot hold: unions, intervals of months and days, …"""
        for column in schema:
            if why := unreadable(column.type):
                raise cannot_hold(self.kind, column, why)
        probe_columns(schema, self.kind, self._try)

    def _try(self, schema: pa.Schema) -> None:
        with self.open_writer(pa.BufferOutputStream(), schema, True) as writer:
            writer.write_table(pa.Table.from_batches([], stored(schema)))  # ``empty_table`` imports pandas

    def open(self, stream: StagedStream, schema: pa.Schema) -> ParquetEncoder:
        return ParquetEncoder(self, stream, schema)

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        with safe_files.file(path) as file:
            return int(pq.read_metadata(file).num_rows)

    def rows_back(self, path: Path) -> Iterator[pa.RecordBatch]:
        with safe_files.file(path) as file:
            yield from pq.ParquetFile(file).iter_batches(use_threads=False)

    def open_writer(
        self,
        stream: pa.NativeFile,
        schema: pa.Schema,
        dictionary: bool | list[str],
        *,
        old_times: bool = False,
    ) -> pq.ParquetWriter:
        """Open pyarrow's writer; ``dictionary``: the paths of the columns that get one, or True for all.

        ``old_times``: times are written as INT96.
        """
        return pq.ParquetWriter(
            stream,
            stored(schema),
            compression=self.codec,
            compression_level=self.compression_level,
            use_dictionary=dictionary,
            use_deprecated_int96_timestamps=old_times,
        )


class ParquetEncoder:
    """Holds batches back until they make a row group: of ``group_rows`` rows, or as the format has it."""

    def __init__(
        self,
        format: Parquet,
        stream: StagedStream | io.BytesIO,
        schema: pa.Schema,
        group_rows: int | None = None,
    ) -> None:
        self._format = format
        self._group_rows = group_rows or format.row_group_rows
        self._schema = stored(schema)
        self._cast = [i for i, column in enumerate(schema) if column.type != self._schema.field(i).type]
        self._stream = pa.BufferedOutputStream(pa.PythonFile(stream, mode="w"), _BUFFER)
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._indexed = [i for i, column in enumerate(schema) if pt.is_dictionary(column.type)]
        self._vectors = [i for i, column in enumerate(schema) if holds_vectors(column.type)]

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        for i in self._vectors:
            if has_null_vector(batch.column(i)) and not null_vectors_can_be_read():
                why = NULL_ARRAY if axes(batch.schema.field(i).type) else NULL_VECTOR
                raise cannot_hold("Parquet", batch.schema.field(i), why)
        for i in self._indexed:
            batch = batch.set_column(i, batch.schema.field(i), with_present_values(batch.column(i)))
        for i in self._cast:
            batch = batch.set_column(
                i, self._schema.field(i), batch.column(i).cast(self._schema.field(i).type)
            )
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        exact = self._group_rows
        if exact is not None:
            if self._rows >= exact:
                self._flush(exact, self._rows - self._rows % exact)
        elif self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            groups = max(1, round(max(self._rows / _GROUP_ROWS, self._bytes / _GROUP_BYTES)))
            self._flush(-(-self._rows // groups), self._rows)

    def close(self) -> int:
        if self._held:
            self._flush(self._group_rows or self._rows, self._rows)
        writer = self._writer or self._format.open_writer(self._stream, self._schema, True)
        writer.close()
        self._stream.close()
        return int(writer.writer.metadata.num_rows)  # as the footer says

    def _flush(self, group_rows: int, rows: int) -> None:
        """Write the first ``rows`` held rows in groups of ``group_rows``; the rest stays held."""
        table = pa.Table.from_batches(self._held, self._schema)
        if self._writer is None:
            dictionary = _worth_a_dictionary(_sample(table), min(group_rows, rows))
            self._writer = self._format.open_writer(self._stream, self._schema, dictionary)
        rest = table.slice(rows)
        self._held, self._rows, self._bytes = rest.to_batches(), rest.num_rows, rest.nbytes
        try:
            self._writer.write_table(table.slice(0, rows), row_group_size=group_rows)
        except pa.ArrowException:
            self._name_column(table.slice(0, rows), group_rows)
            raise

    def _name_column(self, table: pa.Table, group_rows: int) -> None:
        """Raise ``SinkError`` for the column of a table that cannot be written, if it is one of them alone."""
        for column in table.schema:
            alone = table.select([column.name])
            try:
                with self._format.open_writer(pa.BufferOutputStream(), alone.schema, True) as writer:
                    writer.write_table(alone, row_group_size=group_rows)
            except pa.ArrowException as fault:
                raise cannot_hold("Parquet", column, str(fault)) from fault


def stored(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file: views in structs and dictionaries, which Arrow does not write, have a plain type.

    >>> stored(pa.schema([("a", pa.string_view()), ("b", pa.struct([("x", pa.string_view())]))])).types
    [DataType(string_view), StructType(struct<x: string>)]
    """
    types = [_stored_type(column.type) for column in schema]
    return pa.schema(
        [column.with_type(type_) for column, type_ in zip(schema, types, strict=True)], schema.metadata
    )


def _stored_type(kind: pa.DataType, *, within: bool = False) -> pa.DataType:
    """Return the type of a column, or of a part of it; ``within``: of a field of structs, or of a dictionary."""
    if within and (pt.is_string_view(kind) or pt.is_binary_view(kind)):
        return pa.string() if pt.is_string_view(kind) else pa.binary()
    if pt.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _stored_type(kind.value_type, within=True), kind.ordered)
    return changed_within(kind, functools.partial(_stored_type, within=pt.is_struct(kind)))


def _sample(table: pa.Table) -> pa.RecordBatch:
    """Return the first rows in one piece, however small the batches were in which they came."""
    first = table.slice(0, _SAMPLE)
    try:
        return first.combine_chunks().to_batches()[0]
    except pa.ArrowNotImplementedError:  # some types cannot be joined
        return first.to_batches()[0]


def _worth_a_dictionary(sample: pa.RecordBatch, rows: int) -> bool | list[str]:
    """Return the Parquet paths of the columns to write with a dictionary; True for all.

    Judged by a sample of the first of ``rows`` rows in the row group: see :func:`_repeats`.
    """
    leaves: list[tuple[str, bool]] = []
    for column, values in zip(sample.schema, sample.columns, strict=True):
        leaves.extend(_leaves(column.name, values, rows))
    if all(repeats for _, repeats in leaves):
        return True
    return [path for path, repeats in leaves if repeats]


def _leaves(path: str, values: pa.Array, rows: int) -> Iterator[tuple[str, bool]]:
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        yield from _leaves(path, values.storage, rows)
    elif pt.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", values.keys, rows)
        yield from _leaves(f"{path}.key_value.value", values.items, rows)
    elif pt.is_struct(kind):
        for child, part in zip(kind, values.flatten(), strict=True):
            yield from _leaves(f"{path}.{child.name}", part, rows)
    elif is_list_like(kind):
        yield from _leaves(f"{path}.list.element", values.flatten(), rows)
    else:
        yield path, _repeats(values, rows)


def _repeats(values: pa.Array, rows: int) -> bool:
    """Say whether values come again often enough for a dictionary to make the column smaller.

    It does up to about a third as many distinct values as rows. A sample of n, drawn from D values, shows
    D·(1 - exp(-n/D)) of them (the birthday problem). A sample in sorted order shows fewer; the dictionary,
    which is Arrow's default, then stays.
    """
    values = values.slice(0, _SAMPLE)
    present = len(values) - values.null_count
    if present < _SAMPLE // 2 or rows < 2 * _SAMPLE:
        return True
    sample = to_numpy(values)  # importing pyarrow.compute would cost every worker 25 ms
    distinct = len(np.unique(sample)) if sample.dtype != object else len(set(sample.tolist()))
    most = rows / 3
    return distinct < most * -math.expm1(-present / most)
