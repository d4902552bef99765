"""The ports: what a source, a format, a target, a predictor, a metric and an observer promise.

``engine_ports`` has that of an engine.

Each has a contract suite in ``headrace.testing`` that every adapter passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from inspect import isfunction
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast, runtime_checkable

from headrace.core.events import Event, InputMade
from headrace.core.row_keys import Keys, Location, Numbers, keyed, row_keys
from headrace.core.work import Durability, Split, StagedFile, Task
from headrace.errors import UnknownArgument

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from headrace.core.files.input_files import Mark
    from headrace.core.files.staged import StagedStream
    from headrace.core.files.storage import Storage
    from headrace.core.parquet.chunks import ChunkFile, Chunks
    from headrace.core.parquet.footer import Chunk, Footer
    from headrace.core.table_changes import Lost, Seen

Bad = Callable[[int, int, Exception], None]
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a source gets that makes its rows before a run: see ``Source.prepared``.

    ``folder``: where it lays them, in one for each state of its input; what is there of others may go. ``options``
    are those of the run (``RunOptions``). It may use ``memory`` bytes and ``cores``. ``say`` shows what it is at.
    ``lasting``: the folder outlives this process; else the rows are recognised by their content.
    """

    folder: Path
    options: Any
    memory: int
    cores: int
    say: Callable[[str], None]
    lasting: bool = True


@runtime_checkable
class Source(Protocol):
    """Something that is read split by split, on any worker, in any order, more than once.

    The same inputs give the same splits in the same order. An instance travels to the workers by pickle after
    ``splits`` was called, so what it learnt there (files, schema) travels with it; open handles do not.

    Subclass it: what has a default here need not be written. Those of ``files``, ``files_of``, ``pinned`` and
    ``check_unchanged`` are for a source that reads no files and never changes.
    """

    decodes: bool = False
    """Reading is work for a CPU, as decoding images is: workers that hold a GPU leave it to others."""

    shares_memory: bool = False
    """Batches are views of memory that somebody else may change: what is handed to users is copied."""

    files_apart: bool = False
    """Each file is a shard, as what is made of its rows belongs to it alone."""

    one_state: bool = False
    """What it lists as files are states of one thing, such as the answer of a query: only the last can be read."""

    has_chunks: bool = False
    """It reads Parquet files, of which column chunks may be copied as they are stored, see ``chunk_file``."""

    apart: bool = False
    """It has several datasets, and each of them steps of its own: rows are read as their dataset has them."""

    worker_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that reading takes: workers import them while the driver plans."""

    unprepared: bool = False
    """Its rows have to be made before they can be planned and read, as the result of a query has, see ``prepared``.
    Until then, ``splits`` is one split of unknown rows, and ``files`` are those that they are made from."""

    paths: Sequence[str] = ()
    """What it was told to read, if that is by paths or addresses: as a notebook shows it, without secrets."""

    def describe(self) -> dict[str, Any]:
        """Return the shape that identifies this source: plain JSON values, secrets left out."""
        ...

    def schema(self) -> pa.Schema:
        """Return the schema of what ``read`` gives when all columns are asked for."""
        ...

    def code(self) -> dict[str, str]:
        """Return fingerprints of the user's code that makes its rows, as ``plan.identity.code_of`` has them.

        Each place begins with ``input``. Default: none does.
        """
        return {}

    def prepared(self, preparation: Preparation) -> Source:
        """Return the source of the rows, which are made now, or were made by an earlier driver; described as this is.

        Called in the driver where it is ``unprepared``, before its splits are asked for. Default: this source.
        """
        return self

    def preparations(self) -> Sequence[InputMade]:
        """Return what was done so that it could be read: what ``prepared`` did, for observers. Default: nothing."""
        return ()

    def explained(self) -> Sequence[str]:
        """Return lines for ``explain`` on how its rows come about. Default: none."""
        return ()

    def as_planned(self, described: Mapping[str, Any]) -> Source:
        """Return this source in the state in which a run was planned that goes on, by what ``describe`` said then.

        For what has versions, if none was asked for. Default: this source.
        """
        return self

    def position(self) -> dict[str, Any]:
        """Return which version of a table, or state of a database, this reads: plain JSON values.

        Those that ``describe`` has, too, are no part of the shape of an output that further runs add to. Default:
        none, as each file tells whether it is another one.
        """
        return {}

    def for_further_runs(self, *, keyed: bool) -> Source:
        """Return this source as the runs of one output read it, each what is new: described without its position.

        ``keyed``: rows whose keys were seen are left out. Raises ``ArgumentError`` where that cannot be exact.
        Default: this source.
        """
        return self

    def since(self, seen: Seen) -> Source:
        """Return this source with the files that were taken in, in their order, and what is new since behind them.

        Asked of one with a ``position`` only. Raises ``InputChanged`` where rows that were read are others since.
        """
        return self

    def splits(self) -> Sequence[Split]:
        """List the splits in input order. Called once, in the driver, before any ``read``."""
        ...

    def files(self) -> list[tuple[str, int, int]]:
        """Return ``(path, size, mtime_ns)`` for each file, in the numbering that splits use. Default: no files."""
        return []

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files that a split reads. Default: none."""
        return range(0)

    def pinned(self, paths: Sequence[str]) -> Source:
        """Return this source with exactly these files, in this order and numbering; for going on with a run.

        Default: this source.
        """
        return self

    def only_extensions(self, extensions: tuple[str, ...]) -> None:
        """Read only files whose names end in one of these, in small letters and with the dot.

        Raises ``UnknownArgument`` where no files are read. Default: that.
        """
        raise UnknownArgument("file_extensions= is for what reads files.")

    def splits_in_batches(self, rows: int) -> Sequence[Split]:
        """List the splits as ``splits`` does, cut where batches of ``rows`` rows end, as far as that is possible.

        Called instead of ``splits`` where a step has a numeric batch size. Default: ``splits()``.
        """
        return self.splits()

    def splits_from(self, file: int) -> Sequence[Split] | None:
        """List the splits of the files from number ``file`` on; none of them reads a file before.

        So that a run which goes on can take in new files. Default: None, it leaves them out.
        """
        return None

    def splits_alone(self, file: int) -> Sequence[Split] | None:
        """List the splits of file number ``file`` which read no other, though those of ``splits`` may.

        So that a run which goes on can read a file that was written again. Default: None, what ``splits`` says.
        """
        return None

    def forms(self) -> Mapping[str, str]:
        """Return, by name, the form of each column that may hold nulls, see ``core/arrow/forms.py``.

        For columns of which functions would see another dtype with nulls than without. Default: that depends on
        the batch.
        """
        return {}

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split in row order, in batches of at most ``batch_rows`` rows, only ``columns`` if given.

        Each batch has rows: a split without any gives no batch.

        Raises ``InputChanged`` when the file is not the one that was planned with, ``UnreadableFile`` when it
        is damaged (with its name and the offset or row group), a ``SourceError`` for rows that make no sense.

        With ``bad``, rows that make no sense are told instead, and left out: ``bad(row, count, error)`` means the
        rows ``row`` to ``row + count - 1`` of the split; more than one where they are lost together. A bad row
        keeps its number, for ``locate`` too. It is told between the batch with the rows before it and the batch
        with those after it: no batch lies around it. ``error`` names file and row and says what is wrong. Read
        again with the same columns and ``batch_rows``, the same rows are bad; with fewer columns perhaps fewer.
        What is wrong with a file as a whole is raised all the same, ``InputChanged`` included.
        """
        ...

    def check_unchanged(self, split: Split) -> None:
        """Raise ``InputChanged`` if what ``read`` read of this split may have changed since it was called.

        Called after rows were read, in the same process, and before anything made of them is committed. Default:
        nothing changes.
        """
        return None

    def chunk_file(self, split: Split) -> tuple[ChunkFile, frozenset[str]]:
        """Return the Parquet file that a split lies in, and the columns that ``read`` gives as they are there.

        ``split.first`` is then the row of the file where the split begins. Raises ``NotUnderstood``, with the reason,
        where column chunks cannot be copied. Default: that.
        """
        from headrace.core.parquet.compact import NotUnderstood

        raise NotUnderstood("it is not read from Parquet files")

    def note_marks(self, marks: Sequence[Mark]) -> None:
        """Keep the marks of the files, one of each, by which ``read`` tells changed files from others of their size
        and time. Called in the driver, before workers get the source. Default: they are not needed.
        """
        return

    def locate(self, split: Split, row: int) -> Location:
        """Return where row number ``row`` of ``split`` stands. May be slow."""
        ...

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return numbers that tell these rows of ``split`` apart from all others, by where they stand alone.

        A row has the same key however the input is cut and whatever other files there are, as far as the source
        knows. Default: by the first file of the split, and the row's number there; or the split's place there, if
        nobody knows that.
        """
        paths = [self.files()[number][0] for number in self.files_of(split)[:1]]
        return row_keys(*keyed(paths[0] if paths else "", split, numbers))

    @property
    def datasets(self) -> Sequence[Source]:
        """The sources whose rows these are, one behind the other. Default: this one.

        ``read`` and ``row_keys`` are about all as one; the methods below about each, where they are ``apart``.
        """
        return (self,)

    def dataset_of(self, split: Split) -> int:
        """Return the number of the dataset that a split is of; 0 for all where none has steps of its own."""
        return 0

    def read_own(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a split as its dataset has it: its columns and types, marked with its forms."""
        return self.read(split, columns, batch_rows, bad)

    def own_keys(self, split: Split, numbers: Numbers, first: int, stop: int) -> Keys:
        """Return ``row_keys`` as a source of the datasets from number ``first`` to before ``stop`` alone has them."""
        return self.row_keys(split, numbers)

    def close(self) -> None:
        """Let go of files that ``read`` kept open. May be called more than once. Default: none."""
        return None


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

    def mend_records(self, files: Sequence[StagedFile], *, finished: bool) -> int:
        """Note parts again that are in the table, if what was noted of them is gone.

        Return how many rows were inserted again, as neither the table nor what is noted had them.
        """
        return 0


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


class Predictor(Protocol):
    """A model on its way to where it works: made in the driver, sent by pickle, loaded once per worker.

    ``predict`` may be async, for a model that is asked over a network; then all methods are called on one event loop
    of the worker, ``load`` and ``close`` may be async, too, and several batches are awaited at a time.

    One that knows which rows of a batch failed raises ``RowsFailed`` (of ``headrace.core.failures``) with the
    results of the others. An error of ours with ``ends_run`` ends the run whatever ``on_error`` says. ``label`` is
    what messages call it. What it may have besides is in ``PredictorParts``; it need not inherit from anything.
    """

    def load(self) -> None:
        """Make ready to predict. Called once per worker, before the first batch, and never in the driver."""
        ...

    def predict(self, batch: Any) -> Any:
        """Return one result per row: an array, a list, or a dict, DataFrame or Table with names of its own.

        ``batch`` has the input columns in the order in which the user named them; numpy arrays in it are
        read-only views; lists that are of one length in this batch, and ragged tensors of one shape, come as one
        array (n, k…). Called by one thread.
        """
        ...

    def close(self) -> None:
        """Let go of everything. Called once, when the worker ends in good order."""
        ...


class Ahead(Protocol):
    """What a model does for all rows before the run begins, which then finds it in its folder. In the driver.

    ``looking`` is a predictor that is given all rows and notes what they need; its results are dropped. ``words`` say
    what is done just now. ``may`` is False where it does something only if an earlier driver has begun it.
    """

    looking: Any
    words: str
    may: bool

    def check(self, folder: str, after: Sequence[Any], *, elsewhere: bool) -> None:
        """Refuse a run for which it cannot be done.

        ``folder`` "": the run has none. ``after`` are the steps behind. ``elsewhere``: workers are on other machines.
        """
        ...

    def wanted(self, folder: str) -> bool:
        """Say whether there is anything to do, or to complete. Called before what follows."""
        ...

    def open(self, tell: Callable[[Event], None], alive: Callable[[], None]) -> None:
        """Begin; ``tell`` takes events. ``alive`` is to be called a few times a second; what it raises ends it."""
        ...

    def carry_out(self) -> bool:
        """Do what was begun or noted; say whether rows are to be looked at, which they are next then. In a thread."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class PredictorParts:
    """What a predictor may have besides, and what holds for one that has it not."""

    batch_format: Literal["numpy", "pandas", "pyarrow"] | None = None
    """In which form it takes its batches. Default: the one that the user asked for."""

    names_column: str | None = None
    """It gets a column of that name, too: a text for each row of the run, which is the same when the run goes on."""

    identity: Callable[[], Any] | None = None
    """Returns what tells the model from another, such as the hash of its file. Default: that is found out from the
    object, as for any other argument."""

    prompt_version: str = ""
    """What names the way in which a language model is asked, for the record of a run."""

    weights: Callable[[], str] | None = None
    """Says for ``explain`` what workers share of it."""

    keep_in: Callable[[str], None] | None = None
    """Called before ``load`` with a folder of the run, if it has one: what is put there is there again when the run
    goes on, and removed when it has ended."""

    submit: Callable[[Any], Any] | None = None
    """Begins to predict a batch, on a device that computes by itself, and returns a handle of whatever kind."""

    collect: Callable[[Any], Any] | None = None
    """Waits for the batch of a handle, and returns what ``predict`` would. A handle is collected once, or never if
    nobody needs the result; those of several shards in any order. ``close`` may come while some are not."""

    in_flight: int = 2
    """How many batches are submitted before the first is collected; read after ``load``."""

    retried: deque[str] | None = None
    """The names of errors after which it has tried again itself, for the run to tell; they are taken out."""

    asked: Any = None
    """What a language model is asked, and how: its endpoint, its caps, where answers are kept."""

    ahead: Ahead | None = None
    """What is done for all rows before the run begins, such as by a batch service."""

    asked_so_far: Any = None
    """What a language model has used so far; another object whenever that is more."""

    columns: tuple[str, ...] | None = None
    """The columns that it makes. Default: those that ``output=`` names."""

    preparing: Any = None
    """A preprocessor of its checkpoint, which calls of ``predict`` pass over."""

    def input_ends(self, ended: bool) -> None:
        """Called with whether rows come but those that it was given."""

    def kind_of(self, path: str) -> str | None:
        """Say, as a static method, of which kind the model at a path is; None if none of this library is there."""
        return None


class _Completed:
    def __init__(self, value: Any, port: type) -> None:
        self._value, self._port = value, port

    def __getattr__(self, name: str) -> Any:
        default = getattr(self._port, name)
        if not isfunction(default):
            return getattr(self._value, name, default)
        found = getattr(self._value, name, None)
        return found if callable(found) else MethodType(default, self)


def completed(value: Any, port: type[P]) -> P:
    """Return a value as its port has it: what it lacks is as the port says, whether it inherits from it or not.

    >>> completed(None, PredictorParts).in_flight
    2
    """
    return cast("P", _Completed(value, port))


def lacking(value: Any, port: type) -> list[str]:
    """Return what a value, or a class, has not of what a port asks for: of things that users and packages give.

    >>> lacking([], Observer)
    ['on_event']
    """
    return [
        name
        for name, asked in vars(port).items()
        if name[0] != "_"
        and not (callable(getattr(value, name, None)) if isfunction(asked) else hasattr(value, name))
    ]


def fills(value: Any, port: type) -> bool:
    """Say whether a value, or a class, has all that a port asks for.

    >>> from headrace.sources.range import RangeSource
    >>> fills(RangeSource(3), Source), fills("a path", Source)
    (True, False)
    """
    return not lacking(value, port)


class Accumulator(Protocol):
    """A metric that is counted where the rows are, and merged: rows in parts, in any order, give the same.

    Merging is associative and commutative, and merging an empty one changes nothing. States are merged in the order
    of shards, so a metric that adds floats up still gives the same for the same shards. An instance travels to the
    workers by pickle. What it may have besides is in ``AccumulatorParts``; it need not inherit from anything.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The columns that ``update`` reads."""
        ...

    def empty(self) -> Accumulator:
        """Return one with the same settings that has seen no row."""
        ...

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows: a batch with ``columns``, whose memory may be used again afterwards."""
        ...

    def merge(self, other: Any) -> None:
        """Take in what another with the same settings has seen; the other is not used any more."""
        ...

    def result(self) -> Any:
        """Return what comes out for the rows so far; None where there is nothing to tell."""
        ...

    def to_bytes(self) -> bytes:
        """Return the state: it is kept with the shard that its rows are of."""
        ...

    def from_bytes(self, data: bytes) -> Accumulator:
        """Return one with these settings and that state."""
        ...


class AccumulatorParts:
    """What a metric may have besides, and what holds for one that has it not."""

    def prepare(self, dataset: Any) -> Any:
        """Return the dataset with the columns that it reads, where it has them made first. Default: as it is."""
        return dataset

    def describe(self) -> Mapping[str, Any] | None:
        """Return plain JSON values that tell it from one with other settings. Default: class and columns do, and its
        code and attributes."""
        return None

    def note(self) -> str:
        """Return words beside the result, such as why there is none."""
        return ""

    def chart(self) -> Mapping[str, Any] | None:
        """Return plain data that the report draws: see ``headrace.accumulators.base``."""
        return None


class Observer(Protocol):
    """Somebody who watches. One that raises is logged and dropped; the run goes on.

    ``ObserverParts`` says what it may have besides; it need not inherit from anything.
    """

    def on_event(self, event: Event) -> None:
        """See one event; called from the driver's loop, so be quick."""
        ...


class ObserverParts:
    """What an observer may have besides ``on_event``, and what is done where it has it not."""

    def attach(self, state: Any) -> None:
        """Take the state of the run (``headrace.observers.run_state.RunState``), before the first event.

        It includes each event that follows.
        """

    def tick(self) -> None:
        """Draw, if there is something to draw; called about five times a second."""

    def close(self) -> None:
        """The run is over. May be called more than once."""

    def excuse(self, error: Exception) -> str:
        """Say what an error means that is no defect of the observer's, such as a full disk. Default: each is one."""
        return ""
