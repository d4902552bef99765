"""Parquet footers: what planning needs of the files, and one schema for all of them."""

from __future__ import annotations

import dataclasses
import os
import time
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.arrow.forms import EXACT, form_of, is_wide
from headrace.core.arrow.values import column_from
from headrace.core.files.input_files import InputFile
from headrace.core.parquet import compact
from headrace.core.stores.objects import open_arrow, open_binary
from headrace.core.work import Split
from headrace.errors import SchemaMismatch, SourceError, UnreadableFile
from headrace.sources.schemas import folder_fields, folder_values, select, unify

# ------------------------------------------------------------ columns that may hold nulls


@dataclass(frozen=True, slots=True)
class Nullable:
    """Columns of integers and booleans that may hold nulls, and where a file of this schema has their leaves."""

    places: tuple[tuple[pa.Field, _Leaf | None], ...]  # None: more leaves than one, or none

    @classmethod
    def of(cls, parquet: pq.ParquetSchema, schema: pa.Schema, columns: Collection[str] | None) -> Nullable:
        """Look for the columns in a schema; only among ``columns``, if given."""
        wanted = {
            field.name: field
            for field in schema
            if field.nullable
            and (form_of(field.type) is not None or pa.types.is_null(field.type))
            and (columns is None or field.name in columns)
        }
        leaves: dict[str, list[int]] = {}
        for leaf in range(len(parquet) if wanted else 0):
            path = parquet.column(leaf).path
            if path in wanted:
                leaves.setdefault(path, []).append(leaf)
        places = ((field, leaves.get(name, [])) for name, field in wanted.items())
        return cls(
            tuple(
                (field, _Leaf(found[0], parquet.column(found[0]).physical_type) if len(found) == 1 else None)
                for field, found in places
            )
        )

    def holding(self, groups: Sequence[pq.RowGroupMetaData]) -> dict[str, bool]:
        """Return those that hold nulls in these row groups, or for which the file does not tell.

        True: such a column is known to hold integers that float64 may round.
        """
        found = {}
        for field, leaf in self.places:
            if leaf is None:
                found[field.name] = False
            elif any(leaf.may_hold_nulls(group) for group in groups if group.num_rows):
                found[field.name] = is_wide(field.type) and _beyond(groups, leaf)
        return found


class _Leaf(NamedTuple):
    number: int
    type: str  # of its values in the file

    def may_hold_nulls(self, group: pq.RowGroupMetaData) -> bool:
        """Say so of a row group; also if the file does not tell."""
        statistics = self.statistics(group)
        return statistics is None or not statistics.has_null_count or statistics.null_count > 0

    def statistics(self, group: pq.RowGroupMetaData) -> pq.Statistics | None:
        """Return what a row group says of its values; raises for one of another type, as Arrow ends the process."""
        chunk = group.column(self.number)
        if chunk.physical_type != self.type:
            raise pa.ArrowInvalid(f"a column of {self.type} has values of {chunk.physical_type}")
        return chunk.statistics if chunk.is_stats_set else None


def _beyond(groups: Sequence[pq.RowGroupMetaData], leaf: _Leaf) -> bool:
    for group in groups:
        statistics = leaf.statistics(group)
        if statistics is None or not statistics.has_min_max:
            continue
        if not -EXACT <= statistics.min <= statistics.max <= EXACT:
            return True
    return False


def no_footer(path: str, error: Exception) -> SourceError:
    """Explain why a file could not be opened as Parquet."""
    if isinstance(error, OSError) and error.errno:  # an error of the system, not of the file
        return UnreadableFile(f"Cannot open input file {path!r}: {error.strerror or error}.")
    try:
        with open_binary(path) as file:
            head = file.read(4)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4))
            tail = file.read(4)
    except OSError as refused:
        return UnreadableFile(f"Cannot open input file {path!r}: {refused.strerror}.")
    if size == 0:
        what = "it is empty (0 bytes)"
    elif tail == b"PARE":
        what = "its footer is encrypted, and encrypted Parquet is not supported"
    elif head == b"PAR1" and tail != b"PAR1":
        what = f"it begins as one, but at offset {size - 4:,} its end mark is missing: the file is cut short"
    elif head != b"PAR1":
        return UnreadableFile(f"Cannot read {path!r} as Parquet: {_what_else(path, head)}.")
    else:
        what = f"its footer, at the end of its {size:,} bytes, is damaged ({error})"
    return UnreadableFile(f"Cannot read {path!r} as Parquet: {what}. Restore the file or leave it out.")


def _what_else(path: str, head: bytes) -> str:
    """Return what a file is that is not Parquet, and which reader is for it."""
    from headrace.core.files.formats import reader_of  # for the message only

    reader = reader_of(path)
    if reader in ("", "read_parquet"):
        return f"it begins with {head!r}, not with b'PAR1'. Restore the file or leave it out"
    return f"by its name and its first bytes, {head!r}, it is something else; {reader} reads it"


_FEW_GROUPS = 16
_MOST_PIECES = 8
_LEAST_ROWS = 1_024
_DECODED_AGAIN = 128 << 20
_MERGED_OF_OBJECTS = 32 << 20  # decoded
_SPLITS_OF_OBJECTS = 16
_FOOTERS_TOGETHER = 64  # files that a thread looks at in one go
_SLOW_FOOTER = 200e-6  # seconds: more than it takes where the system has a file in memory, with few columns
_FOOTER_BYTES = 16 << 10  # read of each file: most footers of small files are smaller
_VERSION, _SCHEMA = 1 << 4 | compact.I32, 1 << 4 | compact.LIST  # the headers of a footer's first two fields
_SPLITS = 64  # row groups go together up to such a part of all rows


class Footer(msgspec.Struct, frozen=True, gc=False):
    """What planning needs of a file: its schema, and rows and decoded bytes of each row group."""

    schema: pa.Schema
    groups: tuple[tuple[int, int], ...]
    nulls: Mapping[str, bool] = dataclasses.field(
        default_factory=dict
    )  # columns that may hold some; True: and wide integers

    @property
    def rows(self) -> int:
        """Rows of all row groups."""
        return self.groups[0][0] if len(self.groups) == 1 else sum(rows for rows, _ in self.groups)

    @property
    def bytes(self) -> int:
        """Decoded bytes of all row groups."""
        return self.groups[0][1] if len(self.groups) == 1 else sum(size for _, size in self.groups)

    def splits(self, file: int, grain: Grain) -> Iterator[Split]:
        """Yield ranges of row groups: neighbours that are small together, big ones perhaps in pieces."""
        start = rows = size = first = 0
        for number, (group_rows, group_bytes) in enumerate(self.groups):
            pieces = grain.pieces(group_rows, group_bytes)
            if rows and (
                pieces > 1 or size + group_bytes > grain.merge_bytes or rows + group_rows > grain.merge_rows
            ):
                yield Split(file, start, number, rows, size, first)
                start, first, rows, size = number, first + rows, 0, 0
            if pieces > 1:
                for low, high in pairwise(group_rows * cut // pieces for cut in range(pieces + 1)):
                    part = group_bytes * high // group_rows - group_bytes * low // group_rows
                    yield Split(file, number, number + 1, high - low, part, first + low)
                start, first = number + 1, first + group_rows
                continue
            rows += group_rows
            size += group_bytes
        if rows:
            yield Split(file, start, len(self.groups), rows, size, first)


class Grain(msgspec.Struct, frozen=True):
    """How fine a source is cut: what goes together, and how many pieces a row group may become."""

    merge_bytes: int
    merge_rows: int
    most_pieces: int

    @classmethod
    def of(cls, footers: Sequence[Footer], merge_bytes: int, *, objects: bool = False) -> Grain:
        """Choose by what all files hold: few row groups are cut, so that many workers have something to do.

        Those of ``objects`` are not cut, as each piece would fetch the whole; they go together for fewer requests.
        """
        if objects:
            every = sum(rows for footer in footers for rows, _ in footer.groups)
            return cls(_MERGED_OF_OBJECTS, max(_LEAST_ROWS, every // _SPLITS_OF_OBJECTS), 1)
        rows = [group_rows for footer in footers for group_rows, _ in footer.groups if group_rows]
        few = 0 < len(rows) < _FEW_GROUPS
        return cls(
            merge_bytes,
            max(_LEAST_ROWS, sum(rows) // _SPLITS),
            min(_MOST_PIECES, _FEW_GROUPS // len(rows)) if few else 1,
        )

    def pieces(self, rows: int, size: int) -> int:
        """Return how many splits a row group becomes: each is decoded from its start, so big ones less."""
        return max(1, min(self.most_pieces, rows // _LEAST_ROWS, 1 + _DECODED_AGAIN // max(size, 1)))


@dataclass(frozen=True)
class ParquetLayout:
    """What planning learned about all files. Workers get the schema, and how many rows each file has."""

    schema: pa.Schema
    footers: tuple[Footer, ...]
    forms: Mapping[str, str]
    counts: Sequence[int] = ()

    @classmethod
    def of(cls, schema: pa.Schema, footers: Sequence[Footer], forms: Mapping[str, str]) -> ParquetLayout:
        """Count the rows of each file."""
        return cls(schema, tuple(footers), forms, array("q", [footer.rows for footer in footers]))

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetLayout, (self.schema, (), self.forms, self.counts)


def inspect(
    files: Sequence[InputFile],
    columns: Sequence[str] | None,
    *,
    hive: str | None,
    given: pa.Schema | None = None,
    values: Mapping[str, set[str | None]] | None = None,
) -> ParquetLayout:
    """Read every footer; unify the schemas, and add the columns that folders give. Or take the schema ``given``.

    ``values``: what files have instead of columns, by a table's word; None: what their folders say.
    """
    if values is None:
        values = folder_values(files) if hive else {}
    if given is None:
        footers = _read_footers(files, columns)
        schema = _unified(files, footers, columns, hive=hive)
    else:
        schema = given.remove_metadata() if columns is None else select(given.remove_metadata(), columns)
        footers = _read_footers(files, schema.names)
        _check_casts(files, footers, schema, values)
    forms = _forms(schema, footers, values)
    return ParquetLayout.of(schema, footers, forms)


def _read_footers(files: Sequence[InputFile], columns: Sequence[str] | None) -> list[Footer]:
    """Read every file's footer; sizes count only ``columns`` if given."""
    wanted = None if columns is None else frozenset(columns)
    remote = bool(files) and files[0].in_store
    at_once, together = (32, 1) if remote else (16, _FOOTERS_TOGETHER)
    tasks = [files[at : at + together] for at in range(0, len(files), together)]
    found: list[Footer] = []
    left = iter(tasks)
    for task in left if not remote or len(tasks) == 1 else ():
        # Threads wait for Python's lock, and for nothing else, where files are at hand and have few columns.
        started = time.perf_counter()
        found += _footers(task, wanted)
        if time.perf_counter() - started > _SLOW_FOOTER * len(task):
            break
    remaining = list(left)
    if remaining:
        with ThreadPoolExecutor(min(at_once, len(remaining)), thread_name_prefix="footers") as threads:
            for footers in threads.map(_footers, remaining, [wanted] * len(remaining)):
                found += footers
    return found


def _footers(files: Sequence[InputFile], columns: frozenset[str] | None) -> list[Footer]:
    shape: _Shape | None = None
    found = []
    for file in files:
        try:
            end, data = _end_of(file) or (None, None)
            metadata = _metadata(file, end)
            schema = shape.schema_of(data, metadata) if shape is not None else None
            if shape is None or schema is None:
                shape = _Shape(data, metadata, columns)
                schema = shape.schema
            found.append(shape.footer(metadata, schema))
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise no_footer(file.path, error) from error
    return found


class _Shape:
    """What the footers of files of one schema have in common: found once, not once for each of many small files."""

    def __init__(self, data: bytes | None, metadata: pq.FileMetaData, columns: frozenset[str] | None) -> None:
        """``data``: the bytes of the footer, if they are known."""
        parquet = metadata.schema
        self.schema = parquet.to_arrow_schema()
        self._columns = metadata.num_columns
        self._begins = None if data is None else _through_schema(data)
        self._about = metadata.metadata
        self._nullable = Nullable.of(parquet, self.schema, columns)
        self._leaves = None
        if columns is not None:
            self._leaves = leaves_of(parquet, columns)

    def schema_of(self, data: bytes | None, metadata: pq.FileMetaData) -> pa.Schema | None:
        """Return the schema of another file; None if it has other columns, or the leaves of these in another order.

        Where the same bytes say what columns there are, and the writer added the same to them, nothing is looked at.
        """
        same = self._begins is not None and data is not None and data.startswith(self._begins)
        if same and metadata.metadata == self._about:
            return self.schema
        schema = metadata.schema.to_arrow_schema()
        if metadata.num_columns != self._columns or not schema.equals(self.schema):
            return None
        return self.schema if schema.equals(self.schema, check_metadata=True) else schema

    def footer(self, metadata: pq.FileMetaData, schema: pa.Schema) -> Footer:
        """Return what is to know of a file with these columns."""
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        if self._leaves is None:
            sizes = tuple((group.num_rows, group.total_byte_size) for group in groups)
        else:
            sizes = tuple((group.num_rows, _uncompressed(group, self._leaves)) for group in groups)
        rows = sum(of_group for of_group, _ in sizes)
        # A file that says 0 in all is read by its row groups, as other readers do: some writers leave that out.
        if metadata.num_rows not in (0, rows) or any(of_group < 0 for of_group, _ in sizes):
            raise pa.ArrowInvalid(
                f"it says {metadata.num_rows:,} rows in all, and {rows:,} in its row groups"
            )
        return Footer(schema, sizes, self._nullable.holding(groups))


def leaves_of(parquet: pq.ParquetSchema, columns: Collection[str]) -> list[int]:
    """Return the numbers of the leaves that some columns have."""
    paths = (parquet.column(leaf).path for leaf in range(len(parquet)))
    return [leaf for leaf, path in enumerate(paths) if path.split(".", 1)[0] in columns]


def _uncompressed(group: pq.RowGroupMetaData, leaves: Sequence[int]) -> int:
    return sum(group.column(leaf).total_uncompressed_size for leaf in leaves)


def _end_of(file: InputFile) -> tuple[bytes, bytes] | None:
    """Return the end of a local file, and the footer in it, if that is short: cheaper than having Arrow look."""
    if file.in_store:
        return None
    handle = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = os.pread(handle, _FOOTER_BYTES, max(0, file.size - _FOOTER_BYTES))
    finally:
        os.close(handle)
    length = int.from_bytes(end[-8:-4], "little")
    return (end, end[-8 - length : -8]) if end[-4:] == b"PAR1" and length + 8 <= len(end) else None


def _metadata(file: InputFile, end: bytes | None) -> pq.FileMetaData:
    if end is not None:
        return opened_by_arrow(pa.BufferReader(end)).metadata
    with open_arrow(file.path) as opened:
        return pq.read_metadata(opened)


def opened_by_arrow(data: pa.NativeFile) -> pq.core.ParquetReader:
    """Open a Parquet file; ``ParquetFile`` would also make a list of its columns, which takes as long again."""
    reader = pq.core.ParquetReader()
    reader.open(data)
    return reader


def _through_schema(footer: bytes) -> bytes | None:
    """Return a footer up to the end of its schema, which comes first, behind the version of the format."""
    try:
        start = compact.skip(footer, 1, compact.I32)
        if footer[0] == _VERSION and footer[start] == _SCHEMA:
            return footer[: compact.skip(footer, start + 1, compact.LIST)]
    except (compact.NotUnderstood, IndexError):
        pass
    return None


# ---------------------------------------------------------------- one schema


def _unified(
    files: Sequence[InputFile], footers: Sequence[Footer], columns: Sequence[str] | None, *, hive: str | None
) -> pa.Schema:
    """Unify the files' schemas, add the folders' columns, cut to ``columns``."""
    schema = unify(
        (file.path, _only(footer.schema, columns)) for file, footer in zip(files, footers, strict=True)
    )
    if hive:
        for field in folder_fields(folder_values(files), hive):
            if schema.get_field_index(field.name) < 0:
                schema = schema.append(field)
    if columns is None:
        return schema
    if not set(columns) <= set(schema.names):  # only now look at what else there is, to name the nearest
        every = dict.fromkeys(name for footer in footers for name in footer.schema.names)
        schema = pa.schema([*((name, pa.null()) for name in every), *schema])
    return select(schema, columns)


def _check_casts(
    files: Sequence[InputFile],
    footers: Sequence[Footer],
    wanted: pa.Schema,
    folders: Mapping[str, set[str | None]],
) -> None:
    """Raise ``SchemaMismatch`` for a column that no cast brings to the type that the user gave."""
    for name in wanted.names:
        found: dict[pa.DataType, Any] = {}
        for file, footer in zip(files, footers, strict=True):
            at = footer.schema.get_field_index(name)
            if at >= 0:
                found.setdefault(
                    footer.schema.field(at).type, (pa.nulls(0, footer.schema.field(at).type), file.path)
                )
        if name in folders and not found:
            values = [value for value in folders[name] if value is not None]
            found[pa.string()] = column_from(values or [""]).slice(0, len(values)), "the names of folders"
        for type_, (column, where) in found.items():
            try:
                column.cast(wanted.field(name).type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatch(
                    f"schema= says that column {name!r} is {wanted.field(name).type}; in {where!r} it is {type_}, "
                    f"which cannot be converted: {error}."
                ) from error


def _only(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([field for field in schema if field.name in columns])


def _forms(
    schema: pa.Schema, footers: Sequence[Footer], folders: Mapping[str, set[str | None]]
) -> dict[str, str]:
    """Return the forms of the columns that may hold nulls anywhere: a column that a file lacks is null there."""
    found = {}
    for field_ in schema:
        name = field_.name
        if form_of(field_.type) is None:
            continue
        wide = any(footer.nulls.get(name, False) for footer in footers)
        lacking = [footer for footer in footers if footer.schema.get_field_index(name) < 0]
        values = folders.get(name, set()) if len(lacking) == len(footers) else set()
        if values:
            holds = None in values
            whole = pa.types.is_integer(field_.type)
            wide = whole and any(value is not None and abs(int(value)) > EXACT for value in values)
        else:
            holds = bool(lacking) or any(name in footer.nulls for footer in footers)
        form = form_of(field_.type, wide=wide) if holds else None
        if form is not None:
            found[name] = form
    return found
