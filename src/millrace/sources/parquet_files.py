"""Parquet footers, and a Parquet file that is open for reading."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.ports import Bad
from millrace.core.values import column_from
from millrace.core.work import Split
from millrace.errors import SourceError, UnreadableFile
from millrace.sources.files import InputFile, hive_values
from millrace.sources.schemas import conform, read_guarded, select, unify

_INTEGER = 18  # digits that surely fit int64
_FEW_GROUPS = 16
_MOST_PIECES = 8
_LEAST_ROWS = 1_024
_DECODED_AGAIN = 128 << 20
_SPLITS = 64  # row groups go together up to such a part of all rows


@dataclass(frozen=True, slots=True)
class Footer:
    """What planning needs of a file: its schema, and rows and decoded bytes of each row group."""

    schema: pa.Schema
    groups: tuple[tuple[int, int], ...]

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


@dataclass(frozen=True, slots=True)
class Grain:
    """How fine a source is cut: what goes together, and how many pieces a row group may become."""

    merge_bytes: int
    merge_rows: int
    most_pieces: int

    @classmethod
    def of(cls, footers: Sequence[Footer], merge_bytes: int) -> Grain:
        """Choose by what all files hold: few row groups are cut, so that many workers have something to do."""
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
class Found:
    """What was found out about all files. Workers get the schema only: each opens its own footers."""

    schema: pa.Schema
    footers: tuple[Footer, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Found, (self.schema, ())


def study(files: Sequence[InputFile], columns: Sequence[str] | None, *, hive: bool) -> Found:
    """Read every footer; unify the schemas, and add the columns that folders give."""
    footers = _read_footers(files, columns)
    return Found(_unified(files, footers, columns, hive=hive), tuple(footers))


def _read_footers(files: Sequence[InputFile], columns: Sequence[str] | None) -> list[Footer]:
    """Read every file's footer; sizes count only ``columns`` if given."""
    wanted = None if columns is None else frozenset(columns)
    if len(files) == 1:
        return [_footer(files[0], wanted)]
    with ThreadPoolExecutor(min(16, len(files)), thread_name_prefix="footers") as threads:
        return list(threads.map(_footer, files, [wanted] * len(files)))


def _footer(file: InputFile, columns: frozenset[str] | None) -> Footer:
    try:
        metadata = pq.read_metadata(file.path)
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if columns is None:
                size = group.total_byte_size
            else:
                chunks = map(group.column, range(group.num_columns))
                size = sum(
                    chunk.total_uncompressed_size
                    for chunk in chunks
                    if chunk.path_in_schema.split(".", 1)[0] in columns
                )
            groups.append((group.num_rows, size))
        return Footer(metadata.schema.to_arrow_schema(), tuple(groups))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise _no_footer(file.path, error) from error


def _no_footer(path: str, error: Exception) -> SourceError:
    if isinstance(error, OSError) and error.errno:  # the system's word, not the file's fault
        return UnreadableFile(f"Cannot open input file {path!r}: {error.strerror or error}.")
    try:
        with open(path, "rb") as file:
            head = file.read(4)
            size = os.fstat(file.fileno()).st_size
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
        what = f"it begins with {head!r}, not with b'PAR1'"
    else:
        what = f"its footer, at the end of its {size:,} bytes, is damaged ({error})"
    return UnreadableFile(f"Cannot read {path!r} as Parquet: {what}. Restore the file or leave it out.")


# ---------------------------------------------------------------- one schema


def _unified(
    files: Sequence[InputFile], footers: Sequence[Footer], columns: Sequence[str] | None, *, hive: bool
) -> pa.Schema:
    """Unify the files' schemas, add the folders' columns, cut to ``columns``."""
    schema = unify(
        (file.path, _only(footer.schema, columns)) for file, footer in zip(files, footers, strict=True)
    )
    if hive:
        for field in _partition_fields(files):
            if schema.get_field_index(field.name) < 0:
                schema = schema.append(field)
    if columns is None:
        return schema
    if not set(columns) <= set(schema.names):  # only now look at what else there is, to name the nearest
        every = dict.fromkeys(name for footer in footers for name in footer.schema.names)
        schema = pa.schema([*((name, pa.null()) for name in every), *schema])
    return select(schema, columns)


def _only(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([field for field in schema if field.name in columns])


def _partition_fields(files: Sequence[InputFile]) -> list[pa.Field]:
    values: dict[str, set[str | None]] = {}
    for folder in dict.fromkeys(os.path.dirname(file.path) for file in files):
        for key, value in hive_values(os.path.join(folder, "")).items():
            values.setdefault(key, set()).add(value)
    return [pa.field(key, pa.int64() if _integers(found) else pa.string()) for key, found in values.items()]


def _integers(values: set[str | None]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        digits.isascii() and digits.isdigit() and len(digits) <= _INTEGER
        for digits in (value.removeprefix("-") for value in present)
    )


# ---------------------------------------------------------------- reading


class _Rest(NamedTuple):
    """What comes after a piece of a row group that was read: the next piece goes on there."""

    group: int
    row: int
    columns: tuple[str, ...] | None
    batches: Iterator[pa.RecordBatch]


class OpenFile:
    """A Parquet file held open, giving batches of the unified schema.

    Plain reads, no memory map: as fast (measured), and a file that is cut short meanwhile is an error instead
    of a SIGBUS. No pre-buffering either: on a local disk it only costs memory.
    """

    def __init__(self, path: str, schema: pa.Schema, *, hive: bool) -> None:
        self._path = path
        self._schema = schema
        self._folders = hive_values(path) if hive else {}
        self._constants: dict[str, pa.Array] = {}
        self._rest: _Rest | None = None
        try:
            self._file = pq.ParquetFile(path, memory_map=False, pre_buffer=False)
            self._own = set(self._file.schema_arrow.names)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise _no_footer(path, error) from error

    def read(self, split: Split, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split: whole row groups, or a piece of one."""
        group = split.start
        if split.stop == group + 1 and split.rows < self._file.metadata.row_group(group).num_rows:
            start = split.first - self._rows(0, group)
            return self._piece(group, start, split.rows, columns, batch_rows)
        return self._groups(group, split.stop, columns, batch_rows)

    def sound(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; of a damaged row group, those before the first batch that is lost."""
        given = 0
        try:
            for batch in self.read(split, columns, batch_rows):
                yield batch
                given += batch.num_rows
        except UnreadableFile as error:
            failed = self._not_of_the_system(error)
            if split.rows < self._rows(split.start, split.stop):
                bad(given, split.rows - given, self._lost(split, split.start, given, split.rows, failed))
            else:
                yield from self._group_by_group(split, columns, batch_rows, bad, given)

    def _group_by_group(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad, given: int
    ) -> Iterator[pa.RecordBatch]:
        start = 0
        for group in range(split.start, split.stop):
            at, end = start, start + self._rows(group, group + 1)
            start = end
            if end <= given:
                continue
            try:
                for batch in self._groups(group, group + 1, columns, batch_rows):
                    fresh = batch.slice(min(max(given - at, 0), batch.num_rows))
                    at += batch.num_rows
                    if fresh.num_rows:
                        yield fresh
            except UnreadableFile as error:
                lost = max(at, given)
                bad(lost, end - lost, self._lost(split, group, lost, end, self._not_of_the_system(error)))

    def _rows(self, start: int, stop: int) -> int:
        metadata = self._file.metadata
        return sum(metadata.row_group(number).num_rows for number in range(start, stop))

    def _not_of_the_system(self, error: UnreadableFile) -> Exception:
        """Return what Arrow said; what the system said of a disk or a network is no row's fault."""
        cause = error.__cause__
        if not isinstance(cause, Exception) or (isinstance(cause, OSError) and cause.errno):
            raise error
        return cause

    def _lost(self, split: Split, group: int, start: int, stop: int, error: Exception) -> UnreadableFile:
        rows = f"rows {split.first + start:,} to {split.first + stop - 1:,} in "
        return self._damaged(group, group + 1, error, rows)

    def _piece(
        self, group: int, start: int, rows: int, columns: Sequence[str] | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``rows`` rows of a row group from its row ``start`` on; those before are decoded for nothing."""
        asked = None if columns is None else tuple(columns)
        rest, self._rest = self._rest, None
        if rest is not None and rest[:3] == (group, start, asked):
            at, batches = start, rest.batches
        else:
            at, batches = 0, self._groups(group, group + 1, columns, batch_rows)
        stop = start + rows
        while at < stop:
            batch = next(batches, None)
            if batch is None:
                short = EOFError(f"it ends after {at:,} rows")
                raise self._damaged(group, group + 1, short) from short
            low, high = max(start - at, 0), min(stop - at, batch.num_rows)
            for offset in range(low, high, batch_rows):
                yield batch.slice(offset, min(batch_rows, high - offset))
            at += batch.num_rows
            if at > stop:
                batches = chain([batch.slice(high)], batches)
        if stop < self._file.metadata.row_group(group).num_rows:
            self._rest = _Rest(group, stop, asked, batches)

    def _groups(
        self, start: int, stop: int, columns: Sequence[str] | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups ``start`` to ``stop``."""
        target = self._schema if columns is None else select(self._schema, columns)
        own = [name for name in target.names if name in self._own]
        batches = self._file.iter_batches(
            batch_size=batch_rows,
            row_groups=range(start, stop),
            columns=None if len(own) == len(self._own) else own,
            use_threads=False,
        )
        for batch in read_guarded(_validated(batches), lambda error: self._damaged(start, stop, error)):
            if batch.schema.equals(target):
                yield batch if batch.schema.metadata is None else batch.replace_schema_metadata(None)
            else:
                yield conform(batch, target, self._path, self._constant)

    def close(self) -> None:
        """Close the file."""
        self._rest = None
        self._file.close()

    def _constant(self, name: str, rows: int) -> pa.Array | None:
        value = self._folders.get(name)
        if value is None:
            return None
        made = self._constants.get(name)
        if made is None or len(made) < rows:
            type_ = self._schema.field(name).type
            if pa.types.is_integer(type_):
                made = column_from(np.full(rows, int(value), np.int64))
            else:
                made = column_from([value] * rows)
            self._constants[name] = made
        return made.slice(0, rows)

    def _damaged(self, start: int, stop: int, error: Exception, rows: str = "") -> UnreadableFile:
        # Not more than the group's number: pyarrow ends the process over a column's metadata that makes no sense.
        number = self._file.metadata.num_row_groups
        groups = f"row group {start}" if stop == start + 1 else f"row groups {start} to {stop - 1}"
        return UnreadableFile(
            f"Cannot read {rows}{groups} (of {number}) of {self._path!r}: "
            f"{str(error).rstrip('.')}. The file is damaged there; restore it or leave it out."
        )


def _validated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check lengths and offsets, which costs nothing, and indices into dictionaries, which a file may have wrong.

    Not whether each string is UTF-8: it would cost 6 %, and nobody reads beyond memory for it.
    """
    indexed: list[int] | None = None
    for batch in batches:
        batch.validate()
        if indexed is None:
            indexed = [number for number, type_ in enumerate(batch.schema.types) if _has_indices(type_)]
        for number in indexed:
            _check_indices(batch.column(number))
        yield batch


def _check_indices(column: pa.Array) -> None:
    if pa.types.is_dictionary(column.type) and len(column) and not column.null_count:
        indices = column.indices.to_numpy()
        if indices.view(f"u{indices.itemsize}").max() < len(column.dictionary):  # a negative one is huge then
            return
    column.validate(full=True)


def _has_indices(type_: pa.DataType) -> bool:
    inner = (type_.field(number).type for number in range(type_.num_fields))
    return pa.types.is_dictionary(type_) or any(map(_has_indices, inner))
