"""Parts as files, which workers stage.

A format is a subclass of :class:`FileSink` that gives a suffix and an :class:`Encoder`; names, staging and checksums
are the same for all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from headrace.core.arrow.values import one_value
from headrace.core.files.formats import PART_SUFFIX
from headrace.core.files.paths import absolute
from headrace.core.foreign import is_foreign
from headrace.core.ports import Target, Writer
from headrace.core.stores.addresses import is_address, parse_output
from headrace.core.stores.options import Options, checked_for_output, unsigned
from headrace.core.work import REJECTED, Durability, StagedFile, Task
from headrace.errors import ArgumentError, SinkError, nearest
from headrace.sinks.partitioned import Folders, PartitionedWriter, check_columns, file_schema
from headrace.sinks.row_limit import RowLimitWriter
from headrace.sinks.staged import StagedStream

if TYPE_CHECKING:
    from headrace.core.parquet.chunks import Chunks


class Encoder(Protocol):
    """Turns batches of one schema into bytes of one format, written to the stream it was made with."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows; they may be held back."""
        ...

    def close(self) -> int:
        """Write whatever is held back, and the footer if the format has one; return the rows that were encoded."""
        ...


@dataclass(frozen=True)
class FileSink:
    """One file for each shard, in the folder ``root``; several with ``max_rows_per_file``.

    With ``partition_by``, one for each value of these columns, in a folder ``key=value``; the files lack the columns.

    The folder and the staging folder exist before ``open`` and ``publish`` are called: the driver makes them
    when it takes the lock, and a worker that outlived its driver must not bring them back.
    """

    root: str
    max_rows_per_file: int | None = field(default=None, kw_only=True)
    partition_by: tuple[str, ...] = field(default=(), kw_only=True)
    storage_options: Options | Mapping[str, Any] | None = field(default=(), kw_only=True, repr=False)
    _run: str = field(default="", kw_only=True, repr=False)
    _staging: str = field(default="", kw_only=True, repr=False)
    _digits: int = field(default=5, kw_only=True, repr=False)
    _durability: Durability = field(default="power", kw_only=True, repr=False)

    kind: ClassVar[str]
    empty_folders: ClassVar[bool] = True  # an empty text in a column of partition_by is one when it is read

    def __post_init__(self) -> None:
        root, options = os.fspath(self.root), self.storage_options
        in_store = is_address(root)
        if in_store:
            root, options = unsigned(str(parse_output(root)).rstrip("/"), options)
        if not isinstance(options, tuple):
            options = checked_for_output(options)
        if "://" in root and not in_store:
            raise ArgumentError(f"Cannot write to {root!r}: give the folder as a path, without the scheme.")
        if options and not in_store:
            raise ArgumentError("storage_options are for outputs in object stores, such as s3://bucket/out.")
        root = root if in_store else absolute(root, "The output path")
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "storage_options", options)
        check_columns(self.partition_by)

    @property
    def suffix(self) -> str:
        """The end of a part's name, without the first dot: letters, digits, ``_`` and ``-``, maybe two such words.

        As in ``"csv"`` or ``"csv.gz"``. By their names an output knows its parts again.
        """
        raise NotImplementedError

    @property
    def options_of_store(self) -> Options:
        """What is known of the store, as a tuple."""
        assert isinstance(self.storage_options, tuple)
        return self.storage_options

    @property
    def in_store(self) -> bool:
        """True if ``root`` is the address of an object store."""
        return is_address(self.root)

    @property
    def takes_further_runs(self) -> bool:
        """Files may always be added."""
        return True

    @property
    def target(self) -> Target | None:
        """None: readers find the parts themselves."""
        return None

    def why_not_joined(self) -> str:
        """Nothing is copied, whatever the settings."""
        return "columns are copied only from Parquet files to Parquet files"

    def check_source(self, source: Mapping[str, Any]) -> None:
        """Files take rows of all sources."""

    def encoder(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        """Return a fresh encoder that writes to ``stream``."""
        raise NotImplementedError

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` when this format cannot hold ``schema``; names the column. Default: it can hold all.

        Called before the first part is written.
        """
        return None

    def options(self) -> dict[str, Any]:
        """Return the format's own settings: plain JSON values; a run is recognised by them. Default: none."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return kind and settings; not the folder, so that an output that was moved can still be resumed."""
        most = {} if self.max_rows_per_file is None else {"max_rows_per_file": self.max_rows_per_file}
        folders = {"partition_by": list(self.partition_by)} if self.partition_by else {}
        return {"kind": self.kind, **self.options(), **most, **folders}

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files: without the columns of ``partition_by``, or ``SinkError`` for one of these.

        A format's ``check_schema`` looks at this one.
        """
        return file_schema(schema, self.partition_by) if self.partition_by else schema

    @property
    def staging(self) -> str:
        """The folder where attempts of this sink's run write their files."""
        return self._staging

    def bind(self, *, run: str, staging: str, digits: int, durability: Durability) -> FileSink:
        """Return this sink for one run. Raises ``SinkError`` for a suffix that no part can have."""
        if re.fullmatch(PART_SUFFIX, self.suffix) is None:
            raise SinkError(
                f"{type(self).__name__} has the suffix {self.suffix!r}, which an output cannot use to recognise its "
                "parts. A suffix is one word of letters, digits, _ and -, or two with a dot between, such as "
                "'csv.gz'."
            )
        return replace(self, _run=run, _staging=staging, _digits=digits, _durability=durability)

    def staged_in(self, folder: str) -> FileSink:
        """Return this sink for a worker that stages in a folder of its own, where nothing has to last."""
        return replace(self, _staging=folder, _durability="process")

    def open(self, task: Task, schema: pa.Schema) -> Writer:
        """Begin the part of one attempt; its file appears with the first rows, or on ``close``."""
        shard = task.shard.label(self._digits)
        if self.partition_by:
            return self._partitioned(task, schema, shard)
        if self.max_rows_per_file is None:
            return self._part(task, schema, shard)
        return RowLimitWriter(
            lambda number: self._part(task, schema, f"{shard}-{number:05}"), self.max_rows_per_file
        )

    def _part(self, task: Task, schema: pa.Schema, name: str) -> PartWriter:
        staged = f"{name}-{task.attempt}-{os.getpid()}-{os.urandom(4).hex()}.staged"
        return PartWriter(self, schema, staged, f"part-{name}-{self._run}.{self.suffix}")

    def _partitioned(self, task: Task, schema: pa.Schema, shard: str) -> PartitionedWriter:
        within = self.file_schema(schema)

        def open_file(folder: str, number: int | None) -> PartWriter:
            name = shard if number is None else f"{shard}-{number:05}"
            return self._part(task, within, name).within(folder)

        folders = replace(self._folders(shard), takes_empty=self.empty_folders)
        return PartitionedWriter(
            folders, open_file, lambda: self._part(task, schema, shard), self.max_rows_per_file
        )

    def _folders(self, shard: str) -> Folders:
        longest = f"part-{shard}-00000-{self._run}.{self.suffix}"
        return Folders.of(self.partition_by, self.root, self._staging, longest)

    def open_rejected(self, task: Task, schema: pa.Schema) -> PartWriter:
        """Begin the file of the rows that one attempt rejected: Arrow, whatever the format of the parts."""
        shard = task.shard.label(self._digits)
        staged = f"{shard}-{task.attempt}-{os.getpid()}-{os.urandom(4).hex()}.rejected.staged"
        return PartWriter(self, schema, staged, f"{REJECTED}/part-{shard}-{self._run}.arrow", ArrowEncoder)


class ArrowEncoder:
    """Writes Arrow's own file format.

    A file has one dictionary for each column, to which later batches may add; those of row groups differ.
    """

    def __init__(self, stream: StagedStream, schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_file(stream, schema, options=options)
        self._last: dict[int, pa.Array] = {}  # column → no rows, with the dictionary as it was written
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch at once."""
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
        """Write the footer."""
        self._writer.close()
        return self._rows


class PartWriter:
    """One attempt's part, of any format. Used by one thread at a time."""

    def __init__(
        self,
        sink: FileSink,
        schema: pa.Schema,
        staged: str,
        name: str,
        encoder: Callable[[StagedStream, pa.Schema], Encoder] | None = None,
    ) -> None:
        self._sink = sink
        self._encode = encoder or sink.encoder
        self._schema = schema
        self._staged = staged
        self._name = name
        self._lasting = sink._durability == "power"
        self._stream: StagedStream | None = None
        self._encoder: Encoder | None = None

    def within(self, folder: str) -> PartWriter:
        """Publish the part in a folder of the output, ``key=value``, before anything is written."""
        self._name = f"{folder}/{self._name}"
        return self

    def encoded_by(self, encoder: Callable[[StagedStream, pa.Schema], Encoder]) -> PartWriter:
        """Use another encoder than the sink's own, before anything is written."""
        self._encode = encoder
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows, in order."""
        with self._encoding():
            self._opened_encoder().write(batch)

    def write_group(self, file: Chunks, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Write a row group as ``JoinedWriter`` has it."""
        with self._encoding():
            self._opened_encoder().write_group(file, number, batches)  # type: ignore[attr-defined]

    def close(self) -> tuple[StagedFile, ...]:
        """End the part, a valid file even without rows; its size and checksum are final."""
        with self._encoding():
            rows = self._opened_encoder().close()
        assert self._stream is not None
        self._encoder = None
        self._stream.finish(keep_open=self._lasting)
        return (StagedFile(self._staged, self._name, rows, self._stream.size, self._stream.crc32),)

    def sync(self) -> None:
        """Make the part outlive a loss of power, if the run asked for that."""
        if self._lasting and self._stream is not None:
            self._stream.sync()

    def abort(self) -> None:
        """Drop the part, at any time; never raises."""
        if self._stream is not None:
            self._stream.discard()
        self._encoder = None

    def _opened_encoder(self) -> Encoder:
        if self._stream is None:
            self._stream = StagedStream(os.path.join(self._sink._staging, self._staged))
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
            if self._encode == self._sink.encoder:
                self._sink.check_schema(
                    self._schema
                )  # names the column; a schema that was settled late is not checked
            refused = SinkError(f"Cannot write {self._name} as {self._sink.kind}: {error}")
            refused.foreign_cause = is_foreign(self._sink)
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
