"""A Parquet file that is open for reading, row group by row group."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.arrow.batch import concat
from headrace.core.arrow.plain import holds
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad
from headrace.core.stores.objects import ObjectReader, object_of
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources.parquet.files import no_footer
from headrace.sources.schemas import conform, constant, read_guarded, select

_UNEVEN = "columns do not have the same size"  # from Arrow's message
SMALL_BYTES = 64 << 10  # of a file that is read at once
_HELD_BYTES = 16 << 20  # decoded; a reader that leaves bad rows out holds row groups up to this size back


class _Rest(NamedTuple):
    """What comes after a piece of a row group that was read: the next piece goes on there."""

    group: int
    row: int
    columns: tuple[str, ...] | None
    held: bool
    batches: Iterator[pa.RecordBatch]


class Selections:
    """The schema of all columns, and those of some of them: each is made once, not once for each of many files."""

    def __init__(self, every: pa.Schema) -> None:
        self.every = every
        self._latest: tuple[tuple[str, ...], pa.Schema] | None = None

    def of(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema cut to ``columns``, in their order."""
        if columns is None:
            return self.every
        wanted = tuple(columns)
        if self._latest is None or self._latest[0] != wanted:
            self._latest = wanted, select(self.every, wanted)
        return self._latest[1]


class OpenFile:
    """A Parquet file held open, giving batches of the unified schema.

    Plain reads, no memory map: as fast (measured), and a file that is cut short meanwhile is an error instead
    of a SIGBUS. No pre-buffering either: on a local disk it only costs memory.
    """

    def __init__(self, file: InputFile, schemas: Selections, folders: Mapping[str, str | None]) -> None:
        """``schemas``: what its rows are brought to; ``folders``: the values of columns that the file lacks."""
        self.path = self._path = path = file.path
        self._schemas = schemas
        self._schema = schemas.every
        self._folders = folders
        self._constants: dict[str, pa.Array] = {}
        self._rest: _Rest | None = None
        try:
            there = object_of(path)
            self._object = None if there is None else ObjectReader(there)
            self._planned = file
            self._file = pq.ParquetFile(self._data(), memory_map=False, pre_buffer=False)
            self._own = set(self._file.schema_arrow.names)
            self._int96 = int96_columns(self._file.schema, self._own)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise no_footer(path, error) from error

    def _data(self) -> pa.NativeFile:
        return pa.PythonFile(self._object, "r") if self._object is not None else _opened(self._planned)

    def rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; without ``bad``, damage is an error, else see ``sound``."""
        if bad is None:
            return self.read(split, columns, batch_rows)
        return self.sound(split, columns, batch_rows, bad)

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, *, held: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split: whole row groups, or a piece of one.

        ``held``: of a row group that has fewer rows than the footer says, none is yielded.
        """
        group = split.start
        if self._object is not None:
            self._object.expect(self._ranges(split, columns))
        if self._is_piece(split):
            start = split.first - self._rows(0, group)
            return self._piece(group, start, split.rows, columns, batch_rows, held)
        return self._groups(group, split.stop, columns, batch_rows, held)

    def sound(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; of a damaged row group, those before the first batch that is lost.

        Which rows are missing of a row group with too few is not known: it is lost as a whole, or is an error where
        it is too big to be held back until its end.
        """
        given = 0
        held = self._bytes(split) <= _HELD_BYTES
        try:
            for batch in self.read(split, columns, batch_rows, held=held):
                yield batch
                given += batch.num_rows
        except UnreadableFile as error:
            failed = self._not_of_the_system(error)
            if isinstance(failed, _TooFewRows) and not held:
                raise
            if self._is_piece(split):
                bad(given, split.rows - given, self._lost(split, split.start, given, split.rows, failed))
            else:
                yield from self._group_by_group(split, columns, batch_rows, bad, given)

    def _group_by_group(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad, given: int
    ) -> Iterator[pa.RecordBatch]:
        start = 0
        held = self._bytes(split) <= _HELD_BYTES
        for group in range(split.start, split.stop):
            at, end = start, start + self._rows(group, group + 1)
            start = end
            if end <= given:
                continue
            try:
                for batch in self._groups(group, group + 1, columns, batch_rows, held):
                    fresh = batch.slice(min(max(given - at, 0), batch.num_rows))
                    at += batch.num_rows
                    if fresh.num_rows:
                        yield fresh
            except UnreadableFile as error:
                lost = max(at, given)
                bad(lost, end - lost, self._lost(split, group, lost, end, self._not_of_the_system(error)))

    def _is_piece(self, split: Split) -> bool:
        return split.rows < self._rows(split.start, split.stop)

    def _bytes(self, split: Split) -> int:
        """Return how many bytes the row groups of a split have, decoded."""
        return int(split.bytes * self._rows(split.start, split.stop) / max(split.rows, 1))

    def _rows(self, start: int, stop: int) -> int:
        metadata = self._file.metadata
        return sum(metadata.row_group(number).num_rows for number in range(start, stop))

    def _not_of_the_system(self, error: UnreadableFile) -> Exception:
        """Return Arrow's error; an error of the system, of a disk or a network, is no row's fault."""
        cause = error.__cause__
        if not isinstance(cause, Exception) or (isinstance(cause, OSError) and cause.errno):
            raise error
        return cause

    def _lost(self, split: Split, group: int, start: int, stop: int, error: Exception) -> UnreadableFile:
        rows = f"rows {split.first + start:,} to {split.first + stop - 1:,} in "
        return self._damaged(group, group + 1, error, rows)

    def _piece(
        self, group: int, start: int, rows: int, columns: Sequence[str] | None, batch_rows: int, held: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``rows`` rows of a row group from its row ``start`` on; those before are decoded for nothing."""
        asked = None if columns is None else tuple(columns)
        rest, self._rest = self._rest, None
        if rest is not None and rest[:4] == (group, start, asked, held):
            at, batches = start, rest.batches
        else:
            at, batches = 0, self._groups(group, group + 1, columns, batch_rows, held)
        stop = start + rows
        while at < stop:
            batch = next(batches, None)
            assert batch is not None, "a row group with too few rows is an error before"
            low, high = max(start - at, 0), min(stop - at, batch.num_rows)
            for offset in range(low, high, batch_rows):
                yield batch.slice(offset, min(batch_rows, high - offset))
            at += batch.num_rows
            if at > stop:
                batches = chain([batch.slice(high)], batches)
        if stop < self._rows(group, group + 1):
            self._rest = _Rest(group, stop, asked, held, batches)
        else:
            next(batches, None)  # its end is where the rows are counted

    def _groups(
        self, start: int, stop: int, columns: Sequence[str] | None, batch_rows: int, held: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups ``start`` to ``stop``; small neighbours share batches.

        Each is read on its own: Arrow would fill what one column lacks in a row group from the next one, and put the
        values of different rows side by side.
        """
        target = self._schemas.of(columns)
        if stop == start + 1:
            batches = self._group(start, target, batch_rows)
            yield from _held_back(batches) if held else batches
            return
        joins = not any(map(has_indices, target.types))
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for group in range(start, stop):
            of_group = list(self._group(group, target, batch_rows))
            more = self._rows(group, group + 1)
            if not joins or rows + more > batch_rows:
                yield from _joined(waiting, batch_rows if joins else 0)
                waiting, rows = [], 0
            waiting += of_group
            rows += more
        yield from _joined(waiting, batch_rows if joins else 0)

    def _group(self, group: int, target: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one row group: as many as the footer says, or it is an error."""
        own = [name for name in target.names if name in self._own]
        if old := self._int96.intersection(own):
            self._check_times(group, sorted(old))
        batches = self._file.iter_batches(
            batch_size=batch_rows,
            row_groups=[group],
            columns=None if len(own) == len(self._own) else own,
            use_threads=False,
        )
        counted = _counted(_validated(batches), self._rows(group, group + 1))
        for batch in read_guarded(counted, lambda error: self._damaged(group, group + 1, error)):
            if batch.schema.equals(target):
                yield batch if batch.schema.metadata is None else batch.replace_schema_metadata(None)
            else:
                yield conform(batch, target, self._path, self._constant)

    def _check_times(self, group: int, names: list[str]) -> None:
        """Refuse times that nanoseconds cannot hold: of INT96, Arrow makes others of them without a word."""
        with pq.ParquetFile(self._data(), coerce_int96_timestamp_unit="us", pre_buffer=False) as file:
            batches = file.iter_batches(row_groups=[group], columns=names, use_threads=False)
            for batch in read_guarded(batches, lambda error: self._damaged(group, group + 1, error)):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    try:
                        column.cast(self._file.schema_arrow.field(name).type)
                    except pa.ArrowInvalid as error:
                        raise UnreadableFile(
                            f"Cannot read row group {group} of {self._path!r}: the column {name!r} has times before "
                            "1677 or after 2262, stored as INT96, and these are read in nanoseconds, which cannot "
                            "hold them. Leave the column out with columns=, or write the file with times in "
                            "microseconds (spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS)."
                        ) from error

    def unchanged_columns(self) -> frozenset[str]:
        """Return the columns that batches have as they are in the file."""
        own = self._file.schema_arrow
        return frozenset(
            field.name
            for field in own
            if self._schema.get_field_index(field.name) >= 0 and field.equals(self._schema.field(field.name))
        )

    def group_rows(self) -> list[int]:
        """Return how many rows each row group has."""
        metadata = self._file.metadata
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]

    def close(self) -> None:
        """Close the file."""
        self._rest = None
        self._file.close()

    def _ranges(self, split: Split, columns: Sequence[str] | None) -> Iterator[tuple[int, int]]:
        """Yield which bytes of the file hold the columns of a split."""
        wanted = set(self._schema.names if columns is None else columns)
        for number in range(split.start, split.stop):
            group = self._file.metadata.row_group(number)
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.path_in_schema.split(".", 1)[0] in wanted:
                    places = (chunk.dictionary_page_offset, chunk.data_page_offset)
                    start = min((at for at in places if at), default=0)
                    yield start, start + max(0, chunk.total_compressed_size)

    def _constant(self, name: str, rows: int) -> pa.Array | None:
        value = self._folders.get(name)
        if value is None:
            return None
        result = self._constants.get(name)
        if result is None or len(result) < rows:
            result = constant(value, self._schema.field(name).type, rows)
            self._constants[name] = result
        return result.slice(0, rows)

    def _damaged(self, start: int, stop: int, error: Exception, rows: str = "") -> UnreadableFile:
        # Not more than the group's number: pyarrow ends the process over a column's metadata that makes no sense.
        number = self._file.metadata.num_row_groups
        groups = f"row group {start}" if stop == start + 1 else f"row groups {start} to {stop - 1}"
        told = " ".join(str(error).split()).rstrip(" .")
        advice = "The file is damaged there; restore it or leave it out"
        if "Expected all lists to be of size" in told:
            advice = (
                f"A vector is null or has no values, which pyarrow {pa.__version__} writes and cannot read "
                "(apache/arrow issue 35692). Leave its column out, or write the file anew with lists of any length"
            )
        return UnreadableFile(
            f"Cannot read {rows}{groups} (of {number}) of {self._path!r}: {told}. {advice}."
        )


def int96_columns(parquet: pq.ParquetSchema, names: Collection[str]) -> frozenset[str]:
    """Return which columns have times as INT96, an old form."""
    leaves = map(parquet.column, range(len(parquet)))
    old = {leaf.path.split(".", 1)[0] for leaf in leaves if leaf.physical_type == "INT96"}
    return frozenset(old.intersection(names))


def _opened(file: InputFile) -> pa.NativeFile:
    """Open a local file; a small one is read at once, which is one call of the system instead of one a column."""
    if file.size <= SMALL_BYTES:
        with open(file.path, "rb", buffering=0) as data:
            found = data.read(file.size + 1)
        if len(found) == file.size:
            return pa.BufferReader(found)
    return pa.OSFile(file.path, "rb")


class _TooFewRows(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """The pages of a row group hold other numbers of rows than the footer says."""


def _counted(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and raise at their end unless they had as many rows as the footer says."""
    given = 0
    try:
        for batch in batches:
            given += batch.num_rows
            yield batch
    except pa.ArrowInvalid as error:
        if _UNEVEN not in str(error):
            raise
        raise _TooFewRows(f"the footer says {rows:,} rows, and some columns have fewer") from error
    if given != rows:
        raise _TooFewRows(f"the footer says {rows:,} rows, and there are {given:,}")


def _held_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a row group once its end was seen: of one with too few rows, none."""
    held: list[pa.RecordBatch] = []
    try:
        for batch in batches:
            held.append(batch)
    except UnreadableFile as error:
        if not isinstance(error.__cause__, _TooFewRows):
            yield from held
        raise
    yield from held


def _joined(batches: Sequence[pa.RecordBatch], most: int) -> Sequence[pa.RecordBatch]:
    """Return one batch, if that has no more than ``most`` rows."""
    fits = len(batches) > 1 and sum(batch.num_rows for batch in batches) <= most
    return [concat(batches)] if fits else batches


def _validated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check lengths and offsets, which costs nothing, and indices into dictionaries, which a file may have wrong.

    Not whether each string is UTF-8: it would cost 6 %, and memory is safe without it.
    """
    indexed: list[int] | None = None
    for batch in batches:
        batch.validate()
        if indexed is None:
            indexed = indexed_columns(batch.schema)
        for number in indexed:
            check_indices(batch.column(number))
        yield batch


def indexed_columns(schema: pa.Schema) -> list[int]:
    """Return the numbers of the columns that have dictionaries in them."""
    return [number for number, type_ in enumerate(schema.types) if has_indices(type_)]


def check_indices(column: pa.Array) -> None:
    """Raise ``ArrowInvalid`` for an index that its dictionary does not have."""
    if pa.types.is_dictionary(column.type) and len(column) and not column.null_count:
        indices = column.indices.to_numpy()
        if indices.view(f"u{indices.itemsize}").max() < len(column.dictionary):  # a negative one is huge then
            return
    column.validate(full=True)


def has_indices(type_: pa.DataType) -> bool:
    """Say whether a type has dictionaries in it."""
    return holds(type_, pa.types.is_dictionary)
