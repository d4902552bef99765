"""The ports of an output: a format's bytes, the table that parts become, and both together.

Each has a contract suite in ``headrace.testing`` that every adapter passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from headrace.core.work import Durability, StagedFile, Task

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from headrace.core.files.staged import StagedStream
    from headrace.core.files.storage import Storage
    from headrace.core.parquet.chunks import Chunks
    from headrace.core.parquet.footer import Chunk, Footer
    from headrace.core.table_changes import Lost


class Writer(Protocol):
    """One attempt's hold on its output. Used by one thread at a time."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows, in order. The schema is always the settled one."""
        ...

    def close(self) -> tuple[StagedFile, ...]:
        """End the part: everything is handed to the operating system; sizes and checksums are final."""
        ...

    def sync(self) -> None:
        """Make what ``close`` ended survive a loss of power. Called after ``close``, maybe in another thread."""
        ...

    def abort(self) -> None:
        """Drop everything, at any time; never raises."""
        ...


class JoinedWriter(Writer, Protocol):
    """A writer that copies column chunks of the input, too."""

    def write_group(self, file: Chunks, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Copy columns of a row group of ``file``; ``batches`` have its rows of all others.

        ``write`` takes rows of all columns as ever; both keep the order in which they are called.
        """
        ...


class Encoder(Protocol):
    """Turns batches of one schema into bytes of one format, written to the stream it was made with."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows; they may be held back."""
        ...

    def close(self) -> int:
        """Write whatever is held back, and the footer if the format has one; return the rows that were encoded."""
        ...


class JoinedEncoder(Encoder, Protocol):
    """An encoder that takes row groups as ``JoinedWriter`` has them, too."""

    def write_group(self, file: Chunks, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Copy columns of a row group of ``file``; ``batches`` have its rows of all others."""
        ...


NOT_COPIED = "columns are copied only from Parquet files to Parquet files"


class Format(Protocol):
    """The bytes of one part. An instance has the settings, and travels to the workers by pickle.

    Subclass it: only ``kind``, ``suffix`` and ``open`` have no default.
    """

    @property
    def kind(self) -> str:
        """What messages call it. A run is recognised by it."""
        ...

    @property
    def suffix(self) -> str:
        """The end of a part's name, without the first dot: letters, digits, ``_`` and ``-``, maybe two such words.

        As in ``"csv"`` or ``"csv.gz"``. By their names an output knows its parts again.
        """
        ...

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        """Return a fresh encoder that writes to ``stream``."""
        ...

    def options(self) -> dict[str, Any]:
        """Return the settings: plain JSON values; a run is recognised by them. Default: the fields of a dataclass."""
        return {each.name: getattr(self, each.name) for each in fields(self)} if is_dataclass(self) else {}

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` when this format cannot hold ``schema``; names the column. Default: it can hold all.

        Called before the first part is written, with the columns that files have.
        """
        return None

    def file_names(self) -> Callable[[pa.RecordBatch], Sequence[str]] | None:
        """Return what names the rows of one attempt, batch after batch, if each row is a file of its own.

        A name has letters, digits, ``-`` and ``_``. Default: None, as a file has many rows.
        """
        return None

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int | None:
        """Count the rows of a part that is whole, by its own metadata or by its lines; for ``verify``.

        ``described`` is what ``describe`` said of the sink. Default: None, it is not known.
        """
        return None

    @classmethod
    def read_by(cls, described: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
        """Return the options by which the format's reader gives the rows as they were written, text like ``007`` too.

        ``schema`` is that of the files. Default: none, as they say themselves what is in them.
        """
        return {}

    def rows_back(self, path: Path) -> Iterator[pa.RecordBatch] | None:
        """Read the rows of a part back in a form that ``as_stored`` writes as they were. Default: None, it cannot.

        So that rows which were rejected get their places among them when they are tried again.
        """
        return None

    def as_stored(self, schema: pa.Schema) -> Format:
        """Return what writes rows that ``rows_back`` has read. Default: this format, for columns of values."""
        return self

    def rows_stored(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return rows in the form in which ``rows_back`` reads them. Default: as they are."""
        return batches

    def why_not_joined(self) -> str:
        """Say why no column chunks of Parquet files can be copied into parts; "" if some may. Default: none can.

        The methods below are for what copies some, and are not called otherwise.
        """
        return NOT_COPIED

    def why_not_copied(self, field: pa.Field, chunk: Chunk) -> str:
        """Say why a chunk of a column of this type cannot be copied; "" if it can."""
        raise AssertionError(NOT_COPIED)

    def footer_like(self, schema: pa.Schema, old_times: Collection[str] = ()) -> Footer:
        """Return what the footer of a part with these columns says; ``old_times`` are INT96 there, if they may be."""
        raise AssertionError(NOT_COPIED)

    def open_joined(
        self,
        stream: StagedStream,
        schema: pa.Schema,
        copied: Mapping[str, str],
        old_times: Collection[str] = (),
    ) -> JoinedEncoder:
        """Return an encoder, as ``open`` does; ``copied``: columns, and their names in the input.

        ``old_times``: those among them that are INT96, as ``footer_like`` had them.
        """
        raise AssertionError(NOT_COPIED)


class Moment(Enum):
    """When what a run has committed is revealed."""

    COMMIT = "at each commit"
    """Parts get their names; a table gets the rows of all of them in one commit at the end."""

    TRANSACTION = "in the target's transaction"
    """A database gets the rows of each part at its commit; then the part gets its name."""

    END = "at the end"
    """Parts stay out of sight until all are there: in place of those of another run, or beside earlier ones."""


class Target(Protocol):
    """A table whose rows the parts of a run become.

    Whatever a method does, doing it again changes nothing: a driver may have been killed at any moment. Subclass it:
    what has a default here need not be written.
    """

    by_part: ClassVar[bool] = False
    """The table's own records say which parts it has, one by one. Else all parts of a run become rows in one commit,
    or none."""

    place: str = ""
    """Where the table is, as a source that reads it says it; "" if none could read it while rows are added."""

    @property
    def every_row(self) -> bool:
        """Whether each row of the source has to have one here, so that none may be set aside."""
        return False

    def bind(self, sink: Sink) -> Sink:
        """Return a sink that was bound to a run, with what the run has to know of the table. Called in the driver."""
        return sink

    def describe(self) -> dict[str, Any]:
        """Return what identifies the table, and how it is written to: plain JSON values, secrets left out."""
        return {}

    def check_source(self, source: Mapping[str, Any]) -> None:
        """Raise ``SinkError`` if the rows cannot go where this source, which describes itself, reads."""
        return None

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that does not fit the table; names it. The format is asked, too."""
        return None

    @property
    def moment(self) -> Moment:
        """When rows are revealed, unless the parts of the run are to stay out of sight until the end."""
        return Moment.COMMIT

    def revealed(self, run: str = "") -> bool:
        """Say whether the one commit is there: then its parts are the table's, and are left as they are.

        Without ``run``, it is the run that the sink is bound to.
        """
        return False

    def reveal(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
        """Make parts rows of the table, as far as they are not.

        Called with the parts of each record, which are staged yet, or at the end with all of the run, which have
        their final names.
        """
        return None

    def has_parts(self, files: Sequence[StagedFile]) -> Sequence[StagedFile]:
        """Return those of some files of the bound run whose rows the table has, as far as it and the folder say."""
        return files if self.revealed() else ()

    def finish(self, rows: int) -> None:
        """Raise ``SinkError`` if the table is known not to have so many rows of the run; called before its end."""
        return None

    def close(self) -> None:
        """Let go of what revealing holds; more may be revealed later. Default: nothing is held."""
        return None

    def kept_rows(self, run: str) -> str:
        """Say why the rows that a run has in the table cannot be made anew; "" where they can."""
        ...

    def table_there(self) -> str:
        """Return what tells the table that is there from others in its place; "" if there is none, or it is not told.

        A run notes it when it begins.
        """
        return ""

    def check_same(self, begun_with: str, *, needed: bool = False) -> None:
        """Raise ``SinkError`` if the table is not the one that ``table_there`` told of when the bound run began.

        ``needed``: earlier runs of the output have added rows to it, so it must be there.
        """
        return None

    def rows_lost(
        self, files: Sequence[StagedFile], missing: Sequence[StagedFile], run: str = ""
    ) -> Lost | None:
        """Say why the table has not all rows of a run's parts, which it had; None if it has them.

        ``missing``: those among the parts whose files are not there; a table that was compacted does not need them.
        Without ``run``, it is the run that the sink is bound to.
        """
        ...

    def gone(self, files: Sequence[StagedFile], missing: Sequence[StagedFile], run: str = "") -> Lost | None:
        """Say what ``rows_lost`` says, as far as it is told without comparing rows."""
        return self.rows_lost(files, missing, run)

    def why_not_grown(self) -> str:
        """Say why new input cannot become further parts of a run whose one commit is there."""
        return ""

    def insert_again(self, files: Sequence[StagedFile]) -> bool:
        """Insert parts again whose table is gone; False if that is done at the end."""
        return False

    def mend_records(self, files: Sequence[StagedFile], *, finished: bool) -> None:
        """Note parts again that are in the table, if what was noted of them is gone."""
        return None


class Sink(Protocol):
    """Parts in a place, of one format; maybe with a table as their target. ``headrace.sinks.files.FileSink`` is it.

    Workers stage parts, each with a copy of the sink; the driver reveals them.
    """

    @property
    def root(self) -> str:
        """The folder that readers are pointed at, or its address."""
        ...

    @property
    def storage(self) -> Storage:
        """Where ``root`` is."""
        ...

    @property
    def format(self) -> Format:
        """What parts are."""
        ...

    @property
    def target(self) -> Target | None:
        """The table whose rows the parts become; None where readers find the parts themselves."""
        ...

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns that folders are named for."""
        ...

    @property
    def run(self) -> str:
        """The run that this is bound to."""
        ...

    @property
    def source(self) -> Mapping[str, Any]:
        """What the source of that run said of itself."""
        ...

    @property
    def staging(self) -> str:
        """The folder where attempts of that run lay their files."""
        ...

    @property
    def syncs(self) -> bool:
        """True if files have to be synced to last as that run promises."""
        ...

    def in_folder(self, root: str) -> Sink:
        """Return this sink with its parts in another folder, or at another address."""
        ...

    def in_format(
        self,
        format: Format,
        target: Target | None = None,
        *,
        divide: Callable[[Any, pa.Schema], Any] | None = None,
        empty_folders: bool = True,
    ) -> Sink:
        """Return this sink, bound as it is, with parts of another format, for this target or none.

        ``divide`` is how that divides rows, if by no columns of ``partition_by``; without ``empty_folders`` no folder
        can be named for an empty text.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return the shape that identifies this sink: plain JSON values, secrets left out."""
        ...

    def why_not_joined(self) -> str:
        """Say why no column chunks of Parquet files can be copied into parts; "" if some may be."""
        ...

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` when format or target cannot hold ``schema``; names the column."""
        ...

    def bind(
        self,
        *,
        run: str,
        staging: str,
        digits: int,
        durability: Durability,
        source: Mapping[str, Any] | None = None,
    ) -> Sink:
        """Return this sink for one run: its name, where to stage, how many digits shard numbers have.

        ``source``: what the source of the run said of itself when it was planned.
        """
        ...

    def staged_in(self, folder: str) -> Sink:
        """Return this sink, bound as it is, for a worker that stages in a folder of its own and uploads that."""
        ...

    def open(self, task: Task, schema: pa.Schema) -> Writer:
        """Begin the part of one attempt, under a staged name that no other attempt has, ending ``.staged``."""
        ...

    def open_joined(
        self, task: Task, schema: pa.Schema, copied: Mapping[str, str], old_times: Collection[str] = ()
    ) -> JoinedWriter:
        """Begin the part of an attempt into which columns are copied, as ``Format.open_joined`` has them."""
        ...

    def open_rejected(self, task: Task, schema: pa.Schema) -> Writer:
        """Begin the file of the rows that one attempt rejected; it is staged and published as parts are."""
        ...
