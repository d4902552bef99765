"""A shard's rows in several files: of so many rows each, of one row, or one of each value of some columns.

The values name folders, ``key=value``, as Hive, Spark and pyarrow have them. A file of each value is written when the
shard ends, one after the other, so few are open at a time. Until then its rows are held in memory; when there are too
many of them, the values with the most rows are written first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.core.arrow.batch import taken
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.plain import plain, plain_type
from headrace.core.files.hive import HIVE_NULL, folder_name
from headrace.core.files.storage import Storage
from headrace.core.human import count
from headrace.core.target_ports import Writer
from headrace.core.work import StagedFile
from headrace.errors import ArgumentError, SinkError, unknown_column

HELD_BYTES = 64 << 20
OPEN_FILES = 16
MOST_FOLDERS = 10_000
Codes = np.ndarray[Any, np.dtype[np.int64]]

_NOT_IN_NAMES = set("/=%*?[]\\")  # of columns: readers differ in whether they decode the name of a key


def check_columns(columns: Sequence[str]) -> None:
    """Raise ``ArgumentError`` for a column that no folder can be named for."""
    for name in columns:
        if not name or name[0] in "_." or _NOT_IN_NAMES & set(name) or not name.isprintable():
            raise ArgumentError(
                f"partition_by: no folder can be named for the column {name!r}: readers pass over names that begin "
                "with '_' or '.', and read / = % * ? [ ] and \\ as something else. Rename it with rename_columns."
            )


def file_schema(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the files: without the columns that folders are named for.

    Raises ``UnknownColumn`` for one that is not there, ``SinkError`` for a type that has no place in a folder's name.
    """
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise unknown_column("partition_by", name, schema.names)
        if not _can_name(schema.field(index).type):
            raise SinkError(
                f"partition_by: the column {name!r} is of type {schema.field(index).type}, and folders are named for "
                "text, integers, booleans and dates only. Convert it in a step, for example to a rounded number or "
                "to the day of a time."
            )
    rest = [field for field in schema if field.name not in columns]
    if columns and not rest:
        raise SinkError(
            "partition_by names every column of the output, so nothing is left to write to files."
        )
    return pa.schema(rest, metadata=schema.metadata)


def _can_name(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    tests = (pt.is_null, pt.is_string, pt.is_large_string, pt.is_integer, pt.is_boolean, pt.is_date)
    return any(test(kind) for test in tests)


def groups(codes: Sequence[Codes], rows: int) -> list[Codes]:
    """Return the rows that agree in the codes of each column, in groups; the group with the first row comes first.

    >>> groups([np.array([0, 1, 0, 0]), np.array([2, 2, 2, 5])], 4)
    [array([0, 2]), array([1]), array([3])]
    """
    both = np.zeros(rows, np.int64)
    for each in codes:
        both = np.unique(both * (int(each.max(initial=0)) + 1) + each, return_inverse=True)[1].astype(
            np.int64
        )
    order = np.argsort(both, kind="stable")
    cuts = [0, *(np.flatnonzero(np.diff(both[order])) + 1).tolist(), len(order)]
    found = [order[start:stop] for start, stop in pairwise(cuts)]
    return sorted(found, key=lambda group: int(group[0]))


@dataclass(frozen=True, slots=True)
class Folders:
    """Which folder of the output a row goes to."""

    columns: tuple[str, ...]
    longest_name: int  # in bytes
    longest_path: int  # from the output on, without the file's own name
    caseless: bool = False
    takes_empty: bool = True  # texts, which tables read as null

    @classmethod
    def of(
        cls, columns: tuple[str, ...], storage: Storage, staging: str, file: str, *, takes_empty: bool
    ) -> Folders:
        """See how long names may be below ``storage``, for a file called ``file``, and whether ``a`` is ``A``."""
        longest = storage.longest_path(staging) - len(os.fsencode(os.path.join(storage.path, file))) - 2
        folder, name = os.path.split(staging)
        caseless = os.path.lexists(os.path.join(folder, name.upper()))
        return cls(columns, os.pathconf(staging, "PC_NAME_MAX"), longest, caseless, takes_empty)

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield each folder that has rows in the batch, with copies of these rows without the columns."""
        names = [self._named(column, batch.column(column)) for column in self.columns]
        rest = batch.select([name for name in batch.schema.names if name not in self.columns])
        for rows in groups([of_rows for of_rows, _ in names], batch.num_rows):
            folder = "/".join(folders[of_rows[rows[0]]] for of_rows, folders in names)
            self.check_path(folder)
            yield folder, taken(rest, rows)

    @property
    def told(self) -> str:
        """What errors call it."""
        return f"partition_by={list(self.columns)}"

    def schema_in(self, folder: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns without those that folders are named for."""
        return file_schema(schema, self.columns)

    def check_path(self, folder: str) -> None:
        """Raise ``SinkError`` for a folder whose path is too long."""
        if len(os.fsencode(folder)) > self.longest_path:
            raise SinkError(
                f"partition_by: the folder for a row would have a path of {len(os.fsencode(folder)):,} bytes "
                "below the output, which is too long for the file system. Shorten the values in a step."
            )

    def _named(self, column: str, values: pa.Array) -> tuple[Codes, list[str]]:
        """Return the number of each row's folder, and the folders."""
        encoded = plain(values).cast(pa.string()).dictionary_encode(null_encoding="encode")
        texts = encoded.dictionary.to_pylist()
        return to_numpy(encoded.indices).astype(np.int64), [self._folder(column, text) for text in texts]

    def _folder(self, column: str, value: str | None) -> str:
        if value == HIVE_NULL:
            raise SinkError(
                f"partition_by: the column {column!r} holds the text {HIVE_NULL!r}, which means null in the name of "
                "a folder, so it would be read as null. Replace it with another text, or with null, in a step."
            )
        if value == "" and not self.takes_empty:
            raise SinkError(
                f"partition_by: the column {column!r} holds an empty text, which tables read as null. Replace it "
                "with another text, or with null, in a step."
            )
        name = folder_name(column, value, caseless=self.caseless)
        if len(os.fsencode(name)) > self.longest_name:
            raise SinkError(
                f"partition_by: the column {column!r} holds a text of {count(len(value or ''))} characters, so the "
                f"name of its folder would have {len(os.fsencode(name)):,} bytes; the file system takes "
                f"{self.longest_name}. Shorten the texts in a step, or partition by another column."
            )
        return name


class _FilesWriter:
    """The files of one attempt. Each is synced when it ends: neither memory nor descriptors grow with their number.

    ``open_empty`` begins the one file of an attempt without rows, which has all columns; None: it has no file.
    """

    def __init__(self, open_empty: Callable[[], Writer] | None) -> None:
        self._open_empty = open_empty
        self._begun: list[Writer] = []
        self._files: list[StagedFile] = []

    def close(self) -> tuple[StagedFile, ...]:
        if not self._files and self._open_empty is not None:
            self._end(self._begin(self._open_empty()))
        return tuple(self._files)

    def sync(self) -> None:
        """Nothing is left to do: each file was synced when it ended."""

    def abort(self) -> None:
        for writer in self._begun:
            writer.abort()

    def _begin(self, writer: Writer) -> Writer:
        self._begun.append(writer)
        return writer

    def _end(self, writer: Writer) -> None:
        self._files += writer.close()
        writer.sync()


class RowLimitWriter(_FilesWriter):
    """Ends a file wherever one has ``most`` rows.

    ``open_file(number, rows)`` begins the one with this number, whose first rows are these.
    """

    def __init__(
        self,
        open_file: Callable[[int, pa.RecordBatch], Writer],
        most: int,
        open_empty: Callable[[], Writer] | None = None,
    ) -> None:
        super().__init__(open_empty)
        self._open_file = open_file
        self._most = most
        self._writer: Writer | None = None
        self._rows = 0  # in the file that is open

    def write(self, batch: pa.RecordBatch) -> None:
        at = 0
        while at < batch.num_rows:
            rows = batch.slice(at, self._most - self._rows)
            if self._writer is None:
                self._writer = self._begin(self._open_file(len(self._begun), rows))
            self._writer.write(rows)
            self._rows += rows.num_rows
            at += rows.num_rows
            if self._rows == self._most:
                self._end(self._writer)
                self._writer, self._rows = None, 0

    def close(self) -> tuple[StagedFile, ...]:
        if self._writer is not None:
            self._end(self._writer)
        return super().close()


class Division(Protocol):
    """Which folder a row goes to; ``told`` names it in errors."""

    @property
    def told(self) -> str: ...

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]: ...

    def schema_in(self, folder: str, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a file in a folder, by that of the output."""


class PartitionedWriter(_FilesWriter):
    """One attempt's files, one or more in each folder. Used by one thread at a time.

    ``open_file(folder, number)`` begins one; ``number``: its number in the shard, None if it may be the only one.
    At most ``OPEN_FILES`` are open, and ``HELD_BYTES`` of rows wait for theirs. A file that had to be closed for
    another is followed by a further one of its folder, should more rows for it come.
    """

    def __init__(
        self,
        folders: Division,
        open_file: Callable[[str, int | None], Writer],
        open_empty: Callable[[], Writer],
        most_rows: int | None = None,
    ) -> None:
        super().__init__(open_empty)
        self._folders = folders
        self._open_file = open_file
        self._most_rows = most_rows
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._bytes: dict[str, int] = {}
        self._open: dict[str, Writer] = {}  # the one that was written to longest ago comes first
        self._numbers: dict[str, int] = {}  # of the next file

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for folder, rows in self._folders.divided(batch):
            self._held.setdefault(folder, []).append(rows)
            self._bytes[folder] = self._bytes.get(folder, 0) + rows.nbytes
        known = len(self._numbers.keys() | self._held.keys())
        if known > MOST_FOLDERS:
            raise SinkError(
                f"{self._folders.told}: the rows of one part have more than {MOST_FOLDERS:,} "
                "different values, and each would become a folder with a tiny file. Partition by a column of few "
                "values, such as a day or a country, or by a hash of it."
            )
        if sum(self._bytes.values()) > HELD_BYTES:
            self._write_most()

    def close(self) -> tuple[StagedFile, ...]:
        for folder in [*self._open, *self._held]:
            if folder in self._held:
                self._flush(folder)
            if folder in self._open:
                self._end(self._open.pop(folder))
        return super().close()

    def abort(self) -> None:
        super().abort()
        self._held.clear()

    def _write_most(self) -> None:
        """Write the rows of the folders that hold the most, until half the memory is free."""
        left = sum(self._bytes.values())
        for folder in sorted(self._bytes, key=self._bytes.__getitem__, reverse=True):
            if left <= HELD_BYTES // 2:
                return
            left -= self._bytes[folder]
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        writer = self._open.pop(folder, None)
        if writer is None:
            if len(self._open) >= OPEN_FILES:
                self._end(self._open.pop(next(iter(self._open))))
            writer = self._opened(folder)
        self._open[folder] = writer
        del self._bytes[folder]
        for rows in self._held.pop(folder):
            writer.write(rows)

    def _opened(self, folder: str) -> Writer:
        def opened(*_: object) -> Writer:
            number = self._numbers.get(folder, 0)
            self._numbers[folder] = number + 1
            several = number or self._most_rows is not None
            return self._begin(self._open_file(folder, number if several else None))

        return opened() if self._most_rows is None else RowLimitWriter(opened, self._most_rows)
