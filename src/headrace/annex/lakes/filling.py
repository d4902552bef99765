"""Rows of a table that get values while others keep theirs: which parts have them, and files put together anew."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.annex.lakes.places import within
from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.stores.addresses import parse
from headrace.core.stores.writing import StoreWriter
from headrace.core.work import Shard, Split, StagedFile, Task
from headrace.plan.expressions import fields_of
from headrace.sinks.files import PartWriter
from headrace.worker.copy_choice import CopyChoice, choose_copied, typed_fields
from headrace.worker.copying import CannotCopy, GroupCopier
from headrace.worker.reading import SplitReader
from headrace.worker.user_code import evaluate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.core.source_ports import Source
    from headrace.core.target_ports import Sink
    from headrace.worker.rows import Rows

BLOCK = 1 << 14  # rows
AT_ONCE = 2


class Part(Protocol):
    """What has rows of a run."""

    @property
    def rows(self) -> int:
        """How many."""
        ...


F = TypeVar("F")
P = TypeVar("P", bound=Part)


class Piece(NamedTuple, Generic[P]):
    """Rows of a part that belong to one file of a table."""

    part: P
    start: int
    rows: int


Pieces = Sequence[Piece[P]]


def pieces_of(files: Sequence[tuple[F, int]], parts: Sequence[P]) -> list[tuple[F, Pieces[P]]] | None:
    """Return the files that get rows, with those of the parts that are theirs; None if there are not as many.

    ``files``: each with the number of its rows that get values, in the order in which they were read, as ``parts``.
    """
    found: list[tuple[F, Pieces[P]]] = []
    left = deque((part, 0) for part in parts if part.rows)
    for file, count in files:
        pieces: list[Piece[P]] = []
        while count and left:
            part, begun = left.popleft()
            here = min(count, part.rows - begun)
            pieces.append(Piece(part, begun, here))
            count -= here
            if begun + here < part.rows:
                left.appendleft((part, begun + here))
        if count:
            return None
        if pieces:
            found.append((file, pieces))
    return None if left else found


class NewRows:
    """Rows of batches, taken from their front."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self.schema = schema
        self._left = schema.empty_table()

    def take(self, count: int) -> pa.Table:
        """Return the next rows."""
        while self._left.num_rows < count:
            batch = next(self._batches)
            self._left = pa.concat_tables([self._left, pa.Table.from_batches([batch]).cast(self.schema)])
        taken, self._left = self._left.slice(0, count), self._left.slice(count)
        return taken


def filled(
    rows: int, new: pa.Table, at: NDArray[np.int64], kept: pa.Table, kept_at: NDArray[np.int64]
) -> list[pa.Array]:
    """Return columns of so many rows: new values at some places, kept ones at others, and null elsewhere.

    >>> new, kept = pa.table({"a": [7]}), pa.table({"a": [1, 2]})
    >>> filled(4, new, np.array([1]), kept, np.array([0, 1]))[0].to_pylist()
    [1, 7, None, None]
    """
    found = []
    for field in new.schema:
        old = kept.column(field.name).cast(field.type).chunks if field.name in kept.column_names else []
        values = pa.chunked_array([*new.column(field.name).chunks, *old, pa.nulls(1, field.type)], field.type)
        places = np.full(rows, len(values) - 1)
        if old:
            places[kept_at] = np.arange(kept.num_rows) + new.num_rows
        places[at] = np.arange(new.num_rows)
        column = values.take(pa.array(places)).combine_chunks()
        found.append(column.chunk(0) if isinstance(column, pa.ChunkedArray) else column)
    return found


class Filling:
    """Makes files of Parquet in which rows that fulfil a condition have new values; all else is as it was.

    ``source`` reads the table as it was read by the run, a file at a time, and ``condition`` chooses among its rows.
    ``left_out`` are columns that files do not have. ``sink`` is bound to the run.
    """

    def __init__(self, sink: Sink, source: Source, condition: Any, left_out: Sequence[str]) -> None:
        self._sink, self._source, self._condition, self._left_out = sink, source, condition, left_out
        by_file = groupby(source.splits(), key=lambda split: split.file)
        self._splits = {number: list(splits) for number, splits in by_file}

    def counted(self) -> list[tuple[int, int]]:
        """Return the number of each file, and how many of its rows fulfil the condition."""

        def counted(number: int) -> tuple[int, int]:
            return number, len(self._places(copy(self._source), number))

        with self._threads() as threads:
            return list(threads.map(counted, self._splits))

    def files(
        self, pieces: Sequence[tuple[int, Pieces[StagedFile]]], new: pa.Schema
    ) -> list[tuple[int, StagedFile]]:
        """Return the new file of each that gets rows, with its number. ``new``: the columns of the parts."""
        folder = f"_filled-{os.urandom(4).hex()}"  # another driver's files may be the table's by now

        def made(each: tuple[int, Pieces[StagedFile]]) -> tuple[int, StagedFile]:
            return each[0], self._made(*each, new, folder)

        with self._threads() as threads:
            return list(threads.map(made, pieces))

    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headrace-columns")

    def _places(self, source: Source, number: int) -> NDArray[np.int64]:
        """Return which rows of a file fulfil the condition."""
        names, read = source.schema().names, fields_of(self._condition, source.schema())
        columns = names if read is None else [name for name in names if name in read]
        masks = [
            evaluate(self._condition, "where=", rows.batch).fill_null(False).to_numpy(zero_copy_only=False)
            for rows in _rows(source, self._splits[number], columns)
        ]
        return np.flatnonzero(np.concatenate(masks)) if masks else np.empty(0, np.int64)

    def _made(
        self,
        number: int,
        pieces: Pieces[StagedFile],
        new: pa.Schema,
        folder: str,
    ) -> StagedFile:
        source, splits = copy(self._source), self._splits[number]
        old = [name for name in source.schema().names if name not in (*new.names, *self._left_out)]
        carried = typed_fields(source, {name: name for name in old})
        schema = pa.schema([*carried.values(), *(field.remove_metadata() for field in new)])
        chosen = choose_copied(source, self._sink.format, {name: name for name in old}, splits, schema)
        places = self._places(source, number)
        nothing = CopyChoice({}, dict.fromkeys(old, ""), {}, {}, {})
        safe_files.make_folder(Path(self._sink.staging), 0o700)
        for choice in (chosen, nothing):
            task = Task(Shard(number, ()), 0)
            joined = self._sink.open_joined(task, schema, choice.copied, choice.old_times)
            writer = cast(PartWriter, joined).within(folder)
            rows = NewRows(self._new_rows(pieces), new)
            try:
                self._write(source, splits, choice, schema, rows, places, writer)
                (file,) = writer.close()
                writer.sync()
                break
            except CannotCopy:
                writer.abort()
            except BaseException:
                writer.abort()
                raise
        self._name(file)
        failpoints.hit("table.joined")
        return file

    def _write(
        self,
        source: Source,
        splits: Sequence[Split],
        chosen: CopyChoice,
        schema: pa.Schema,
        new: NewRows,
        places: NDArray[np.int64],
        writer: PartWriter,
    ) -> None:
        copier = GroupCopier(chosen, source, lambda rows: rows.batch.select(schema.names), lambda: writer)
        made, at = new.schema.names, 0
        read = [name for name in source.schema().names if name in chosen.decoded or name in made]
        for rows in _rows(source, splits, read):
            first, last = map(int, np.searchsorted(places, [at, at + len(rows)]))
            kept = pa.Table.from_batches([rows.batch]).select([name for name in read if name in made])
            every = np.arange(len(rows))
            columns = filled(len(rows), new.take(last - first), places[first:last] - at, kept, every)
            found = {
                **{name: rows.batch.column(name) for name in chosen.decoded},
                **dict(zip(made, columns, strict=True)),
            }
            of_rows = pa.schema([field for field in schema if field.name in found])
            batch = pa.RecordBatch.from_arrays([found[name] for name in of_rows.names], schema=of_rows)
            if chosen.copied:
                copier.write(rows.with_batch(batch))
            else:
                writer.write(batch)
            at += len(rows)
        copier.close()

    def _new_rows(self, pieces: Pieces[StagedFile]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            with self._sink.storage.opened(piece.part.name) as data:
                before, left = piece.start, piece.rows
                for batch in pq.ParquetFile(data).iter_batches(BLOCK):
                    here = batch.slice(before, left)
                    before, left = max(0, before - batch.num_rows), left - here.num_rows
                    if here.num_rows:
                        yield here

    def _name(self, file: StagedFile) -> None:
        """Give a file that is staged its name, which nobody knows yet."""
        path = os.path.join(self._sink.staging, file.staged)
        self._sink.storage.pick(self._name_on_disk, self._name_in_store)(path, file)

    def _name_on_disk(self, path: str, file: StagedFile) -> None:
        target = Path(within(self._sink.root, file.name))
        safe_files.make_folder(target.parent)
        os.replace(path, target)
        if self._sink.syncs:
            safe_files.sync_folder(target.parent)
            safe_files.sync_folder(target.parent.parent)

    def _name_in_store(self, path: str, file: StagedFile) -> None:
        store = StoreWriter(parse(self._sink.root), self._sink.storage.options)
        with safe_files.file(path) as opened:
            store.put_file(file.name, opened, file.size, when=None, notes={})
        os.unlink(path)


def _rows(source: Source, splits: Sequence[Split], columns: Sequence[str]) -> Iterator[Rows]:
    for split in splits:
        reading = SplitReader(source, split, columns, tolerant=False)
        while (read := reading.next()) is not None:
            yield read.rows


def by_name(parts: Sequence[StagedFile]) -> list[StagedFile]:
    """Return parts in the order of their rows."""
    return sorted(parts, key=lambda part: part.name)
