"""Small Parquet files that are read together: a split of many of them, and what each costs less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.arrow.batch import one_batch
from headrace.core.files.input_files import FileState, InputFile, content_of
from headrace.core.source_ports import Bad
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources.parquet.files import Footer, Grain, leaves_of, opened_by_arrow
from headrace.sources.parquet.reader import (
    SMALL_BYTES,
    OpenFile,
    check_indices,
    indexed_columns,
    int96_columns,
)

MOST_ROWS = 4_096  # of a small file: columns of longer row groups may be copied as they are stored
_MOST_BYTES = 8 << 20  # in memory: values that repeat may take more there than the footer says
_SPLITS = 256  # files go together up to such a part of all files, and of all rows


def splits_of(
    files: Sequence[InputFile], footers: Sequence[Footer], grain: Grain, first: int = 0
) -> list[Split]:
    """List the splits of the files from number ``first`` on; neighbours that are small are one split.

    Such a split has ``-stop`` whole files, from ``file`` on. Each of them has rows.
    """
    most_files = len(files) // _SPLITS
    most_rows = sum(footer.rows for footer in footers) // _SPLITS
    splits: list[Split] = []
    begun, rows, size = first, 0, 0  # of the run of small files

    def end_run(stop: int) -> None:
        if stop - begun > 1:
            splits.append(Split(begun, 0, begun - stop, rows, size, 0))
        elif stop > begun:
            splits.extend(footers[begun].splits(begun, grain))

    for number in range(first, len(footers)):
        footer = footers[number]
        more_rows, more = footer.rows, footer.bytes
        if not 0 < more_rows < MOST_ROWS or more > grain.merge_bytes or not _is_small(files[number]):
            end_run(number)
            splits.extend(footer.splits(number, grain))
            begun, rows, size = number + 1, 0, 0
            continue
        fits = size + more <= grain.merge_bytes and rows + more_rows <= most_rows
        if number - begun >= most_files or not fits:
            end_run(number)
            begun, rows, size = number, 0, 0
        rows += more_rows
        size += more
    end_run(len(footers))
    return splits


def _is_small(file: InputFile) -> bool:
    return file.size <= SMALL_BYTES and not file.in_store


class SmallFiles:
    """Reads the files of one split in their order.

    ``target`` is the schema that rows are brought to. ``opened`` opens a file by its number: one that is not like
    the others, or that is damaged, is read in the usual way, which says what is wrong with it.
    """

    def __init__(
        self,
        files: Sequence[tuple[int, InputFile, int]],
        target: pa.Schema,
        columns: Sequence[str] | None,
        opened: Callable[[int], OpenFile],
        states: MutableSequence[FileState | None],
    ) -> None:
        """``files``: the number of each, the file as it was planned with, and how many rows it has.

        ``states`` gets the state of each file that is read, as it is then.
        """
        self._files = files
        self._target = target
        self._columns = columns
        self._opened = opened
        self._plain = _Plain(target)
        self._states = states

    def read(self, batch_rows: int, bad: Bad | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows: first those of one file, then more at a time, up to ``batch_rows``."""
        waiting = _Waiting(self._target)
        most = at = 0
        for place, (number, file, rows) in enumerate(self._files):
            content, self._states[place] = content_of(file)
            found = self._plain.decoded(content, rows) if rows and content is not None else None
            if waiting.rows and (
                found is None
                or found[1] is not waiting.order
                or waiting.rows >= most
                or waiting.bytes >= _MOST_BYTES
                or waiting.rows + rows > batch_rows
            ):
                most = min(batch_rows, 2 * waiting.rows)
                yield from waiting.taken(batch_rows)
            if found is not None:
                waiting.add(*found)
                if not waiting.joins:
                    yield from waiting.taken(batch_rows)
            elif rows:
                yield from self._read_alone(number, rows, batch_rows, _counted_from(bad, at))
            at += rows
        yield from waiting.taken(batch_rows)

    def _read_alone(
        self, number: int, rows: int, batch_rows: int, bad: Bad | None
    ) -> Iterator[pa.RecordBatch]:
        opened = self._opened(number)
        groups = opened.group_rows()
        if sum(groups) != rows:
            raise UnreadableFile(
                f"{opened.path}: the input was planned with {rows:,} rows of this file, and it has {sum(groups):,}. "
                "Restore the file or leave it out."
            )
        split = Split(number, 0, len(groups), rows, 0, 0)
        yield from opened.rows(split, self._columns, batch_rows, bad)


def _counted_from(bad: Bad | None, first: int) -> Bad | None:
    if bad is None:
        return None
    told = bad
    return lambda row, count, error: told(first + row, count, error)


class _Waiting:
    """The rows of some files that are put together into one batch; of one file, where ``joins`` is False."""

    def __init__(self, target: pa.Schema) -> None:
        self._target = target
        self.joins = not indexed_columns(target)  # dictionaries would have to be joined, too
        self._tables: list[pa.Table] = []
        self.rows = self.bytes = 0
        self.order: Sequence[int] | None = None

    def add(self, table: pa.Table, order: Sequence[int]) -> None:
        """Add the rows of a file; ``order``: which of its columns are those that are wanted."""
        self._tables.append(table)
        self.rows += table.num_rows
        self.bytes += table.get_total_buffer_size()
        self.order = order

    def taken(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows, and forget them."""
        tables, self._tables, self.rows, self.bytes = self._tables, [], 0, 0
        if not tables or self.order is None:
            return
        if self.joins:
            (found,) = pa.concat_tables(tables).combine_chunks().to_batches()
        else:
            found = one_batch(tables[0])
        batch = pa.RecordBatch.from_arrays([found.column(at) for at in self.order], schema=self._target)
        for start in range(0, batch.num_rows, batch_rows):
            yield batch.slice(start, batch_rows)


class _Plain:
    """Decodes files whose columns are those that are wanted: what is to know of a schema is found once."""

    def __init__(self, target: pa.Schema) -> None:
        self._target = target
        self._names = frozenset(target.names)
        self._indexed = bool(indexed_columns(target))
        self._parquet: pq.ParquetSchema | None = None
        self._leaves: list[int] = []
        self._checked = False  # they have times that are looked at when they are read alone
        self._arrow: pa.Schema | None = None
        self._order: Sequence[int] | None = None

    def decoded(self, content: bytes, rows: int) -> tuple[pa.Table, Sequence[int]] | None:
        """Return the rows of a file of one row group, and which of their columns are the wanted ones.

        None if it is another file, or anything is wrong with it. Files of one schema have the same list of columns.
        """
        if not self._names:
            return None
        try:
            opened = opened_by_arrow(pa.BufferReader(content))
            metadata = opened.metadata
            if metadata.num_row_groups != 1 or metadata.num_rows != rows:
                return None
            parquet = metadata.schema
            if self._parquet is None or not parquet.equals(self._parquet):
                self._parquet = parquet
                self._leaves = leaves_of(parquet, self._names)
                self._checked = bool(int96_columns(parquet, self._names))
            if self._checked:
                return None
            table = opened.read_row_group(0, column_indices=self._leaves, use_threads=False)
            if table.num_rows != rows:
                return None
            table.validate()
            for number in indexed_columns(table.schema) if self._indexed else ():
                for chunk in table.column(number).iterchunks():
                    check_indices(chunk)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeError):
            return None
        if self._arrow is None or not table.schema.equals(self._arrow, check_metadata=True):
            self._arrow = table.schema
            self._order = self._order_of(table.schema)
        return None if self._order is None else (table, self._order)

    def _order_of(self, schema: pa.Schema) -> Sequence[int] | None:
        """Return where the wanted columns are; None if they are not there, or of other types."""
        places = [schema.get_field_index(name) for name in self._target.names]
        same = all(
            at >= 0 and schema.field(at).type.equals(field.type)
            for at, field in zip(places, self._target, strict=True)
        )
        return places if same else None
