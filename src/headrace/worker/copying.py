"""Columns that are copied as they are stored: steps see none of their values, and whole row groups are copied."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import concat, empty_columns, taken
from headrace.core.arrow.objects import bytes_of
from headrace.core.parquet.chunks import RowGroups
from headrace.core.parquet.compact import NotUnderstood
from headrace.core.source_ports import Source
from headrace.core.target_ports import JoinedWriter
from headrace.core.work import Reject, Split
from headrace.errors import SourceError
from headrace.plan.physical import Program
from headrace.worker.copy_choice import CopyChoice, choose_copied, typed_fields
from headrace.worker.meter import Meter
from headrace.worker.reading import Read, SplitReader, read_split
from headrace.worker.rows import Rows, RowSpan

MOST_HELD = 64 << 20  # bytes of results that wait for the end of their row group
MOST_ROWS = 64 << 20  # rows of a row group that the encoder makes as one


class CannotCopy(Exception):
    """Something about a file is not as its footer said: the shard's next attempt decodes."""


class GroupCopier:
    """Takes rows in order, without the columns that are copied, and writes row groups.

    A row group of which rows are missing, or whose results would need much memory until its end, is decoded: the
    columns that are copied elsewhere are read now, for the rows that are there. ``conform`` brings all columns to the
    schema of the output; ``writer`` opens the part when it is first called.
    """

    def __init__(
        self,
        chosen: CopyChoice,
        source: Source,
        conform: Callable[[Rows], pa.RecordBatch],
        writer: Callable[[], JoinedWriter],
    ) -> None:
        self._chosen = chosen
        self._late = LateColumns(source, chosen)
        self._conform = conform
        self._writer = writer
        self._row_groups: tuple[int, RowGroups] | None = None  # file, those of it that lie in the shard
        self._group: tuple[int, int] | None = None  # file, row group
        self._next = 0  # row of the file that follows the held ones
        self._whole = True
        self._held: list[Rows] = []
        self._bytes = 0

    def write(self, rows: Rows) -> None:
        """Take the next rows."""
        for file, group, first, piece in self._by_group(rows):
            self._take(file, group, first, piece)

    def close(self) -> None:
        """Write what is held; raises ``InputChanged`` for a file that is not what it was."""
        self._end_group()
        for file in self._chosen.files.values():
            file.check_unchanged()

    def _by_group(self, rows: Rows) -> Iterator[tuple[int, int, int, Rows]]:
        """Cut rows where row groups end: file, row group, first row in the file (-1: rows are missing), rows."""
        at = 0
        for span in rows.spans:
            if span.last is not None:
                raise CannotCopy("it is not known which rows these are")
            starts = self._chosen.starts[span.split.file]
            done = 0
            while done < span.count:
                first = int(span.index[done]) if span.index is not None else span.first + done
                group = bisect_right(starts, span.split.first + first) - 1
                stop = starts[group + 1] - span.split.first
                count = min(_rows_before(span, done, stop), span.count - done)
                yield (
                    span.split.file,
                    group,
                    span.split.first + first if _follow_one_another(span, done, count) else -1,
                    rows.cut(at + done, at + done + count),
                )
                done += count
            at += span.count

    def _take(self, file: int, group: int, first: int, rows: Rows) -> None:
        starts = self._chosen.starts[file]
        if self._group != (file, group):
            self._end_group()
            self._group, self._next, self._whole = (file, group), starts[group], True
        short = starts[group + 1] - starts[group] <= MOST_ROWS
        self._whole = self._whole and short and first == self._next
        self._held.append(rows)
        self._next += len(rows)
        self._bytes += bytes_of(rows.batch)
        if self._whole and self._next == starts[group + 1]:
            self._copy(file, group)
        elif not self._whole or self._bytes > MOST_HELD:
            self._whole = False
            self._decode()

    def _end_group(self) -> None:
        self._decode()
        self._group = None

    def _copy(self, file: int, group: int) -> None:
        if self._row_groups is None or self._row_groups[0] != file:
            columns = list(self._chosen.copied.values())
            self._row_groups = file, self._chosen.files[file].row_groups(self._chosen.whole[file], columns)
        try:
            chunks = self._row_groups[1].take(group)
        except (NotUnderstood, OSError) as error:
            raise CannotCopy(str(error)) from error
        self._writer().write_group(chunks, group, [rows.batch for rows in self._held])
        self._held, self._bytes, self._group = [], 0, None

    def _decode(self) -> None:
        for rows in self._held:
            late = self._late.of(rows)
            schema = pa.schema([*rows.batch.schema, *late.schema])
            columns = [*rows.batch.columns, *late.columns]
            self._writer().write(
                self._conform(rows.with_batch(pa.RecordBatch.from_arrays(columns, schema=schema)))
            )
        self._held, self._bytes = [], 0


class LateColumns:
    """Reads the columns that were to be copied for rows that are not; these come in order, so it reads on.

    It reads by a copy of the source, with files of its own: another thread may be reading from the others.
    """

    def __init__(self, source: Source, chosen: CopyChoice) -> None:
        self._source = copy(source)
        self._names = {original: name for name, original in chosen.copied.items()}
        self._columns = [name for name in source.schema().names if name in self._names]
        self._split: Split | None = None
        self._reader: SplitReader | None = None
        self._batch: pa.RecordBatch | None = None
        self._first = 0  # number of the first row in the batch

    def of(self, rows: Rows) -> pa.RecordBatch:
        """Return the columns for some rows, by their names in the output."""
        try:
            parts = [part for span in rows.spans if span.count for part in self._parts(span)]
        except SourceError as error:
            raise CannotCopy(str(error)) from error
        together = concat(parts) if parts else empty_columns(0)
        return together.rename_columns([self._names[name] for name in together.schema.names])

    def _parts(self, span: RowSpan) -> Iterator[pa.RecordBatch]:
        numbers = span.numbers()
        if span.split != self._split or self._batch is None or numbers[0] < self._first:
            self._split, self._batch, self._first = span.split, None, 0
            self._reader = SplitReader(self._source, span.split, self._columns, tolerant=False)
        done = 0
        while done < len(numbers):
            batch = self._batch
            if batch is None or numbers[done] >= self._first + batch.num_rows:
                self._read_on()
                continue
            count = int(np.searchsorted(numbers[done:], self._first + batch.num_rows))
            chosen = numbers[done : done + count] - self._first
            whole = chosen[-1] - chosen[0] + 1 == count
            yield batch.slice(int(chosen[0]), count) if whole else taken(batch, chosen)
            done += count

    def _read_on(self) -> None:
        assert self._reader is not None
        read = self._reader.next()
        if read is None:
            raise CannotCopy("rows are missing when they are read again")
        if len(read.rows):
            self._batch = read.rows.batch
            self._first = int(read.rows.spans[0].numbers()[0])


def _rows_before(span: RowSpan, done: int, stop: int) -> int:
    """Return how many rows of a span, from its row ``done`` on, have a number before ``stop``."""
    if span.index is None:
        return stop - span.first - done
    return int(np.searchsorted(span.index[done:], stop))


def _follow_one_another(span: RowSpan, done: int, count: int) -> bool:
    if span.index is None:
        return True
    numbers: np.ndarray[Any, Any] = span.index[done : done + count]
    return bool((numbers[1:] - numbers[:-1] == 1).all())


# ---------------------------------------------------------------- reading without the copied columns

_MARK = b"headrace.not_read"


class CopiedColumns:
    """The columns that one attempt copies.

    ``names`` are those of the output and of the source, ``old_times`` which of them are INT96, ``columns`` what is
    read of the source, ``schema`` that of the columns which are not copied, once the output's is settled.
    """

    def __init__(self, program: Program, chosen: CopyChoice) -> None:
        self._program = program
        self._chosen = chosen
        self._fields = typed_fields(program.source, chosen.copied)
        decoded = {program.carried[name] for name in chosen.decoded}
        self.names = chosen.copied
        self.old_times = chosen.old_times
        self.columns = tuple(
            name for name in _columns(program) if name in program.looked_at or name in decoded
        )
        self.schema = pa.schema([])

    @classmethod
    def chosen(
        cls, program: Program, splits: Sequence[Split], settled: pa.Schema | None
    ) -> CopiedColumns | None:
        """Return what is copied of a shard; None if that is nothing."""
        assert program.sink is not None
        found = choose_copied(
            program.source, program.sink.format, program.carried, splits, settled, program.looked_at
        )
        if program.reads_blocks and found.decoded:
            name, why = next(iter(found.decoded.items()))
            raise CannotCopy(f"column {name!r} was not read by the stages before: {why}")
        return cls(program, found) if found.copied else None

    def read(self, split: Split, meter: Meter, skip: Sequence[Reject]) -> Iterator[Read]:
        """Read a split, with all columns: those that nobody looks at have no values."""
        return _placed(read_split(self._program, split, meter, skip, self.columns), _columns(self._program))

    def typed(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a batch with the types of the columns that are copied."""
        return pa.schema([self._fields.get(field.name, field) for field in schema])

    def copier(
        self,
        schema: pa.Schema,
        conform: Callable[[Rows, pa.Schema], pa.RecordBatch],
        writer: Callable[[], JoinedWriter],
    ) -> GroupCopier:
        """Take the output's schema, what brings rows to it, and what opens the part; return what takes the rows."""
        for name, field in self._fields.items():
            at = schema.get_field_index(name)
            if at < 0 or not schema.field(at).equals(field):
                raise CannotCopy(f"the output has column {name!r} with another type")
        self.schema = pa.schema([field for field in schema if field.name not in self.names])
        source = self._program.source
        return GroupCopier(self._chosen, source, lambda rows: conform(rows, schema), writer)

    def made(self, rows: Rows) -> Rows:
        """Return rows without the columns that are copied."""
        batch = rows.batch
        kept = [i for i, name in enumerate(batch.schema.names) if name not in self.names]
        for i in kept:
            if _MARK in (batch.schema.field(i).metadata or {}):
                raise AssertionError(f"column {batch.schema.names[i]!r} was not read, and is not copied")
        return rows.without_side_columns(batch.select(kept) if kept else empty_columns(batch.num_rows))


def read_for_copying(program: Program, split: Split, meter: Meter, skip: Sequence[Reject]) -> Iterator[Read]:
    """Read a split for the next stage, without the columns that the last stage copies and no step looks at."""
    every = _columns(program)
    looked_at = [name for name in every if name in program.looked_at]
    return _placed(read_split(program, split, meter, skip, looked_at), every)


def _columns(program: Program) -> Sequence[str]:
    """Return the columns of the source that the plan has."""
    columns = program.reads[0].columns
    return program.source.schema().names if columns is None else columns


def _placed(reads: Iterator[Read], columns: Sequence[str]) -> Iterator[Read]:
    for read in reads:
        yield Read(read.rows.with_batch(_with_places(read.rows.batch, columns)), read.rejects)


def _with_places(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    nothing = pa.nulls(batch.num_rows)
    fields: list[pa.Field] = []
    columns: list[Any] = []
    for name in names:
        at = batch.schema.get_field_index(name)
        fields.append(batch.schema.field(at) if at >= 0 else pa.field(name, pa.null(), metadata={_MARK: b""}))
        columns.append(batch.column(at) if at >= 0 else nothing)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
