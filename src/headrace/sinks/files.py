"""Parts as files, which workers stage: of any format, in a folder or a store, with or without a table as target."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self, cast

import pyarrow as pa

from headrace.core.arrow.values import one_value
from headrace.core.asked import why_not
from headrace.core.failures import is_foreign
from headrace.core.files import safe_files
from headrace.core.files.formats import PART_SUFFIX
from headrace.core.files.staged import StagedStream
from headrace.core.files.storage import Storage, output_at, storage_at
from headrace.core.stores.addresses import Options, checked
from headrace.core.target_ports import Encoder, Format, JoinedEncoder, Sink, Target, Writer
from headrace.core.work import REJECTED, Durability, StagedFile, Task
from headrace.errors import ArgumentError, SinkError, nearest
from headrace.sinks.dividing import (
    Division,
    Folders,
    PartitionedWriter,
    RowLimitWriter,
    check_columns,
    file_schema,
)

if TYPE_CHECKING:
    from headrace.core.parquet.chunks import Chunks


# ------------------------------------------------------------ Arrow's own files: rejected rows are always such


@dataclass(frozen=True)
class Arrow(Format):
    """A file has one dictionary for each column, to which later batches may add; those of row groups differ."""

    kind: ClassVar[str] = "Arrow"
    suffix: ClassVar[str] = "arrow"

    def open(self, stream: StagedStream, schema: pa.Schema) -> ArrowEncoder:
        return ArrowEncoder(stream, schema)

    def rows_back(self, path: Path) -> Iterator[pa.RecordBatch]:
        with pa.BufferReader(safe_files.mapped(path)) as file:
            reader = pa.ipc.open_file(file)
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        with pa.BufferReader(safe_files.mapped(path)) as file:
            reader = pa.ipc.open_file(file)
            return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


class ArrowEncoder:
    """Writes batches at once."""

    def __init__(self, stream: StagedStream | IO[bytes], schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_file(stream, schema, options=options)
        self._last: dict[int, pa.Array] = {}  # column → no rows, with the dictionary as it was written
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for number, column in enumerate(batch.columns):
            if pa.types.is_dictionary(column.type):
                batch = batch.set_column(number, batch.schema.field(number), self._extended(number, column))
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def _extended(self, number: int, column: pa.Array) -> pa.Array:
        """Return a column with the dictionary that was written, and behind it what is new."""
        if number in self._last:
            column = pa.chunked_array([self._last[number], column]).unify_dictionaries().chunk(1)
        elif not len(column.dictionary):  # Arrow adds nothing to one without values
            column = pa.DictionaryArray.from_arrays(
                column.indices, one_value(column.type.value_type), ordered=column.type.ordered
            )
        self._last[number] = column.slice(0, 0)
        return column

    def close(self) -> int:
        self._writer.close()
        return self._rows


Encode = Callable[[StagedStream, pa.Schema], Encoder]
Divide = Callable[[Folders, pa.Schema], Division]


@dataclass(frozen=True)
class FileSink:
    """One file of ``format`` for each shard, in the folder ``root``; several with ``max_rows_per_file``.

    With ``partition_by``, one for each value of these columns, in a folder ``key=value``; the files lack the columns.
    With a ``target``, the parts become rows of a table; ``divide`` is how that divides them, if by no such columns.

    The folder and the staging folder exist before ``open`` and ``publish`` are called: the driver makes them
    when it takes the lock, and a worker that outlived its driver must not bring them back.

    >>> from headrace.sinks.text import Csv
    >>> FileSink("out", Csv(), max_rows_per_file=1000).describe()["max_rows_per_file"]
    1000
    """

    root: str
    format: Format
    target: Target | None = field(default=None, kw_only=True)
    max_rows_per_file: int | None = field(default=None, kw_only=True)
    partition_by: tuple[str, ...] = field(default=(), kw_only=True)
    storage_options: Options | Mapping[str, Any] | None = field(default=(), kw_only=True, repr=False)
    # Folders of empty texts are read as such, where tables read nulls.
    empty_folders: bool = field(default=True, kw_only=True, repr=False)
    divide: Divide | None = field(default=None, kw_only=True, repr=False)
    run: str = field(default="", kw_only=True, repr=False)  # this and what follows: when it is bound
    staging: str = field(default="", kw_only=True, repr=False)
    digits: int = field(default=5, kw_only=True, repr=False)
    durability: Durability = field(default="power", kw_only=True, repr=False)
    source: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, hash=False)

    def __post_init__(self) -> None:
        storage = output_at(self.root, self.storage_options)
        if checked(self.storage_options) and not storage.options:
            raise ArgumentError(f"storage_options: {why_not('storage_options', 'folder')}")
        object.__setattr__(self, "root", storage.path)
        object.__setattr__(self, "storage_options", storage.options)
        check_columns(self.partition_by)

    @property
    def storage(self) -> Storage:
        return storage_at(self.root, checked(self.storage_options))

    @property
    def syncs(self) -> bool:
        return self.storage.syncs(self.durability)

    def describe(self) -> dict[str, Any]:
        """Return kind and settings; not the folder, so that an output that was moved can still be resumed."""
        most = {} if self.max_rows_per_file is None else {"max_rows_per_file": self.max_rows_per_file}
        folders = {"partition_by": list(self.partition_by)} if self.partition_by else {}
        table = {} if self.target is None else self.target.describe()
        return {"kind": self.format.kind, **self.format.options(), **most, **folders, **table}

    def why_not_joined(self) -> str:
        """Say why no column chunk of the input can be copied into this output; "" if some may."""
        why = self.format.why_not_joined()
        if not why and self.partition_by:
            return "partition_by= sorts rows into other files"
        if not why and self.divide is not None:
            return "the table is partitioned"
        return "max_rows_per_file= cuts row groups" if not why and self.max_rows_per_file is not None else why

    def check_schema(self, schema: pa.Schema) -> None:
        if self.target is not None:
            self.target.check_schema(schema)
        self.format.check_schema(file_schema(schema, self.partition_by) if self.partition_by else schema)

    def bind(
        self,
        *,
        run: str,
        staging: str,
        digits: int,
        durability: Durability,
        source: Mapping[str, Any] | None = None,
    ) -> Sink:
        """Return this sink for one run. Raises ``SinkError`` for a suffix that no part can have."""
        if re.fullmatch(PART_SUFFIX, self.format.suffix) is None:
            raise SinkError(
                f"{type(self.format).__name__} has the suffix {self.format.suffix!r}, which an output cannot use to "
                "recognise its parts. A suffix is one word of letters, digits, _ and -, or two with a dot between, "
                "such as 'csv.gz'."
            )
        about = dict(source or {})
        bound = replace(self, run=run, staging=staging, digits=digits, durability=durability, source=about)
        return bound if self.target is None else self.target.bind(bound)

    def in_folder(self, root: str) -> FileSink:
        return replace(self, root=root)

    def in_format(
        self,
        format: Format,
        target: Target | None = None,
        *,
        divide: Divide | None = None,
        empty_folders: bool = True,
    ) -> FileSink:
        return replace(self, format=format, target=target, divide=divide, empty_folders=empty_folders)

    def staged_in(self, folder: str) -> FileSink:
        return replace(self, staging=folder, durability="process")

    def open(self, task: Task, schema: pa.Schema) -> Writer:
        """Begin the part of one attempt; its file appears with the first rows, or on ``close``."""
        names = self.format.file_names()
        if names is not None:
            return RowLimitWriter(lambda _, row: self._part(task, schema, name=names(row)[0]), most=1)
        if self.partition_by or self.divide is not None:
            return self._divided(task, schema)
        if self.max_rows_per_file is None:
            return self._part(task, schema)
        part = partial(self._part, task, schema)
        return RowLimitWriter(lambda number, _: part(number), self.max_rows_per_file, partial(part, 0))

    def _part(
        self,
        task: Task,
        schema: pa.Schema,
        number: int | None = None,
        name: str = "",
        encode: Encode | None = None,
    ) -> PartWriter:
        label = task.shard.label(self.digits)
        if number is not None or task.behind:
            label += f"-{(number or 0) + task.behind:05}"
        last = f"{name}.{self.format.suffix}" if name else self.format.suffix
        name = f"part-{label}-{self.run}.{last}"
        return PartWriter(self, self.format, schema, task, label, name, encode=encode)

    def _divided(self, task: Task, schema: pa.Schema) -> PartitionedWriter:
        longest = f"part-{task.shard.label(self.digits)}-00000-{self.run}.{self.format.suffix}"
        folders = Folders.of(
            self.partition_by, self.storage, self.staging, longest, takes_empty=self.empty_folders
        )
        division: Division = folders if self.divide is None else self.divide(folders, schema)

        def open_file(folder: str, number: int | None) -> PartWriter:
            return self._part(task, division.schema_in(folder, schema), number).within(folder)

        return PartitionedWriter(
            division, open_file, lambda: self._part(task, schema), self.max_rows_per_file
        )

    def open_joined(
        self, task: Task, schema: pa.Schema, copied: Mapping[str, str], old_times: Collection[str] = ()
    ) -> PartWriter:
        encode = partial(self.format.open_joined, copied=copied, old_times=old_times)
        return self._part(task, schema, encode=encode)

    def open_rejected(self, task: Task, schema: pa.Schema) -> PartWriter:
        shard = task.shard.label(self.digits)
        name = f"{REJECTED}/part-{shard}-{self.run}.arrow"
        return PartWriter(self, Arrow(), schema, task, shard, name, ".rejected")


@dataclass(frozen=True)
class TableOfFiles(Target):
    """A table whose rows are those of parts: ``files`` says where these are. ``sink`` is what a plan gets."""

    files: Sink

    def format(self) -> Format:
        """Return the format of the parts: that of ``files``, with the types of the table."""
        raise NotImplementedError

    def sink(self) -> Sink:
        """Return a sink whose parts go to this table."""
        return self.files.in_format(self.format(), self)

    def bind(self, sink: Sink) -> Sink:
        """Return the sink of the same table with the files of a run."""
        return self.of(sink).sink()

    def of(self, sink: Sink) -> Self:
        """Return this table with the files of a sink that was bound to a run. The table is not looked at."""
        return replace(self, files=sink.in_format(self.files.format))


class PartWriter:
    """One attempt's part, of any format. Used by one thread at a time."""

    def __init__(
        self,
        sink: FileSink,
        format: Format,
        schema: pa.Schema,
        task: Task,
        label: str,
        name: str,
        ending: str = "",
        encode: Encode | None = None,
    ) -> None:
        self._format = format
        self._encode = encode or format.open
        self._schema = schema
        self._staging, self._label = sink.staging, label
        self._staged = f"{label}-{task.attempt}-{os.getpid()}-{os.urandom(4).hex()}{ending}.staged"
        self._name = name
        self._lasting = sink.durability == "power"
        self._stream: StagedStream | None = None
        self._encoder: Encoder | None = None

    def within(self, folder: str) -> PartWriter:
        """Publish the part in a folder of the output, ``key=value``, before anything is written."""
        self._name = f"{folder}/{self._name}"
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        with self._encoding():
            self._opened_encoder().write(batch)

    def write_group(self, file: Chunks, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        with self._encoding():
            cast(JoinedEncoder, self._opened_encoder()).write_group(file, number, batches)

    def close(self) -> tuple[StagedFile, ...]:
        with self._encoding():
            rows = self._opened_encoder().close()
        assert self._stream is not None
        self._encoder = None
        self._stream.finish(keep_open=self._lasting)
        return (StagedFile(self._staged, self._name, rows, self._stream.size, self._stream.crc32),)

    def sync(self) -> None:
        if self._lasting and self._stream is not None:
            self._stream.sync()

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.discard()
        self._encoder = None

    def _opened_encoder(self) -> Encoder:
        if self._stream is None:
            self._stream = StagedStream(os.path.join(self._staging, self._staged), self._label)
        if self._stream.error is not None:
            raise self._stream.error
        if self._encoder is None:
            self._encoder = self._encode(self._stream, self._schema)
        return self._encoder

    @contextmanager
    def _encoding(self) -> Iterator[None]:
        """Raise the error of the stream, whatever the encoder made of it, or ``SinkError`` for what Arrow refuses."""
        try:
            yield
        except Exception as error:
            failed = self._stream.error if self._stream is not None else None
            if failed is not None and failed is not error:
                raise failed from (failed.__cause__ or error)
            if not isinstance(error, pa.ArrowException):
                raise
            # This names the column; a schema that was settled late was not checked.
            self._format.check_schema(self._schema)
            refused = SinkError(f"Cannot write {self._name} as {self._format.kind}: {error}")
            refused.foreign_cause = is_foreign(self._format)
            raise refused from error


def choose(value: Any, choices: Collection[str | None], name: str) -> None:
    """Raise ``ArgumentError`` for an option's value that is not one of ``choices``."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        hint = nearest(str(value), [choice for choice in choices if choice])
        raise ArgumentError(f"{name}={value!r} is not known; it is one of {listed}.{hint}")


def probe_columns(schema: pa.Schema, kind: str, trial: Any) -> None:
    """Let ``trial(schema)`` write the schema; if it cannot, find the column at fault and name it.

    Asking the library is the only list of supported types that is never out of date.
    """
    if len(schema) == 0:
        raise SinkError(f"{kind} cannot hold rows without columns: keep at least one column.")
    try:
        trial(schema)
    except (pa.ArrowException, OSError) as error:  # of Arrow too: it writes into memory
        for column in schema:
            try:
                trial(pa.schema([column]))
            except (pa.ArrowException, OSError) as fault:
                raise cannot_hold(kind, column, str(fault)) from fault
        raise SinkError(f"{kind} cannot hold this schema: {error}") from error


def cannot_hold(kind: str, column: pa.Field, why: str) -> SinkError:
    """Return the error for a column that a format cannot hold."""
    why = why.rstrip(". \n")
    return SinkError(
        f"{kind} cannot hold column {column.name!r} of type {column.type}: {why}. "
        f"Convert the column in a step, leave it out with drop_columns, or write another format."
    )
