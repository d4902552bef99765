"""The ports: what a source, a sink, an engine, a pool and an observer promise.

Each has a contract suite in ``headrace.testing`` that every adapter passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headrace.core.events import Event
from headrace.core.locations import Location
from headrace.core.row_keys import Keys, Numbers, keyed, row_keys
from headrace.core.work import BlockRef, Durability, Split, StagedFile, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.parquet.chunks import ChunkFile
    from headrace.core.parquet.footer import Chunk, Footer

Bad = Callable[[int, int, Exception], None]


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

    def describe(self) -> dict[str, Any]:
        """Return the shape that identifies this source: plain JSON values, secrets left out."""
        ...

    def schema(self) -> pa.Schema:
        """Return the schema of what ``read`` gives when all columns are asked for."""
        ...

    def as_planned(self, described: Mapping[str, Any]) -> Source:
        """Return this source in the state in which a run was planned that goes on, by what ``describe`` said then.

        For what has versions, if none was asked for. Default: this source.
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

    def write_group(self, file: ChunkFile, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Copy columns of a row group of ``file``; ``batches`` have its rows of all others.

        ``write`` takes rows of all columns as ever; both keep the order in which they are called.
        """
        ...


class JoiningSink(Protocol):
    """What a sink has besides if column chunks of Parquet files can be copied into its parts as they are."""

    def why_not_joined(self) -> str:
        """Say why none can, by the sink's own settings; "" if some may."""
        ...

    def why_not_copied(self, field: pa.Field, chunk: Chunk) -> str:
        """Say why a chunk of a column of this type cannot; "" if it can."""
        ...

    def footer_like(self, schema: pa.Schema) -> Footer:
        """Return what the footer of a part with these columns says."""
        ...

    def open_joined(self, task: Task, schema: pa.Schema, copied: Mapping[str, str]) -> JoinedWriter:
        """Begin the part of an attempt, as ``open`` does; ``copied``: columns, and their names in the input."""
        ...


class TableSink(Protocol):
    """What a sink has besides if all parts of a run become rows of a table in one commit, at its end."""

    def committed(self, run: str = "") -> bool:
        """Say whether the table has that commit: then its parts are the table's, and are left as they are.

        Without ``run``, it is the run that the sink is bound to.
        """
        ...

    def add_to_table(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
        """Commit the parts, which have their final names, unless that was done. Doing it again changes nothing."""
        ...

    def why_not_grown(self) -> str:
        """Say why new input cannot become further parts of a run whose commit is done."""
        ...


class Sink(Protocol):
    """Where parts go. Workers stage, only the driver publishes; both hold a copy of the same sink."""

    @property
    def root(self) -> str:
        """The folder that readers are pointed at."""
        ...

    @property
    def staging(self) -> str:
        """The folder where attempts of the run that this is bound to lay their files."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the shape that identifies this sink: plain JSON values, secrets left out."""
        ...

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` when this format cannot hold ``schema``; names the column."""
        ...

    def bind(self, *, run: str, staging: str, digits: int, durability: Durability) -> Sink:
        """Return this sink for one run: its name, where to stage, how many digits shard numbers have."""
        ...

    def open(self, task: Task, schema: pa.Schema) -> Writer:
        """Begin the part of one attempt, under a staged name that no other attempt has, ending ``.staged``."""
        ...

    def open_rejected(self, task: Task, schema: pa.Schema) -> Writer:
        """Begin the file of the rows that one attempt rejected; it is staged and published as parts are."""
        ...

    def state(self, file: StagedFile) -> Literal["published", "staged", "missing"]:
        """Say where a committed file is. A file of another size than recorded is missing."""
        ...

    def publish(self, file: StagedFile) -> None:
        """Give a staged file its final name. Doing it again changes nothing."""
        ...

    def finish(self, success: bytes) -> None:
        """Make all names last, then put ``_SUCCESS`` with these bytes in place, at once or not at all."""
        ...


class Predictor(Protocol):
    """A model on its way to where it works: made in the driver, sent by pickle, loaded once per worker.

    An attribute ``batch_format`` (``"numpy"``, ``"pandas"`` or ``"pyarrow"``) says in which form it takes its
    batches; without one, it is the form that the user asked for. ``label`` is what messages call it. A method
    ``identity()`` returns what tells the model from another, such as the hash of its file; without one, that is found
    out from the object, as for any other argument. ``weights()`` says for ``explain`` what workers share of it.

    ``predict`` may be async, for a model that is asked over a network; then all methods are called on one event loop
    of the worker, ``load`` and ``close`` may be async, too, and several batches are awaited at a time.

    One that knows which rows of a batch failed raises ``RowsFailed`` (of ``headrace.core.rows_failed``) with the
    results of the others. An error of ours with ``ends_run`` ends the run whatever ``on_error`` says. A method
    ``keep_in(folder)``, if there is one, is called before ``load`` when a run has a folder: what is put there is
    there again when the run goes on, and removed when it has ended.

    What it tries again itself is told with the run if it has an attribute ``retried``, a deque of the names of
    errors.

    A predictor whose device computes by itself may have two methods more. ``submit(batch)`` begins to predict and
    returns a handle of whatever kind; ``collect(handle)`` waits for that batch, and returns what ``predict`` would.
    Then ``in_flight`` batches (an attribute that is read after ``load``; 2 without one) are submitted before the
    first is collected. A handle is collected once, or never if nobody needs the result; those of several shards
    in any order. ``close`` may come while handles are not collected.
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


class Accumulator(Protocol):
    """A metric that is counted where the rows are, and merged: rows in parts, in any order, give the same.

    Merging is associative and commutative, and merging an empty one changes nothing. States are merged in the order
    of shards, so a metric that adds floats up still gives the same for the same shards. An instance travels to the
    workers by pickle. It may have ``describe()``, plain JSON values that tell it from one with other settings
    (without one, its class and columns do, and its code and attributes); ``note()``, words beside the result, such as
    why there is none; and ``chart()``, plain data that the report draws: see ``headrace.accumulators.curves``.
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


class Observer(Protocol):
    """Somebody who watches. One that raises is logged and dropped; the run goes on.

    Of those in ``observers=`` only ``on_event`` is asked for. One that has ``attach(state)`` gets the state of the
    run (``headrace.observers.run_state.RunState``) before the first event; it includes each event that follows.
    """

    def on_event(self, event: Event) -> None:
        """See one event; called from the driver's loop, so be quick."""
        ...

    def tick(self) -> None:
        """Draw, if there is something to draw; called about five times a second."""
        ...

    def close(self) -> None:
        """The run is over. May be called more than once."""
        ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a machine has: cores that we may use, bytes of memory that we may fill, GPUs."""

    cpus: int
    memory: int
    gpus: int


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool is made of: ``factory(context)`` makes the object that each worker hosts.

    ``num_gpus`` is what each worker has for itself, in devices: it sees those and no others, none if it is 0, all
    that the driver sees if it is None. ``most``: the size to which the pool may grow, so that devices are kept free.
    ``devices``: the very ones that each worker sees, where who starts the pool hands them out himself.

    What follows is for engines that place workers on several machines. ``num_cpus``: cores that each worker needs
    (None: what the engine gives to those who say nothing);
    ``least``: how many workers the pool cannot do without (None: all); ``sees``: a file that each has to find;
    ``extra``: what else the engine is told about each.

    ``on_packed(worker, note, packed)`` gets what workers send with ``DriverLine.note_packed``; ``on_end(worker)`` is
    called when one has ended.
    """

    name: str
    factory: Callable[[Any], Any]
    size: int = 1
    threads: int = 1
    num_gpus: float | None = None
    memory: int | None = None
    stall_timeout: float = 300.0
    most: int | None = None
    devices: tuple[str, ...] | None = None
    num_cpus: float | None = 1.0
    least: int | None = None
    sees: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    on_packed: Callable[[int, Any, Any], None] | None = None
    on_end: Callable[[int], None] | None = None


class DriverLine(Protocol):
    """How the code of a worker may ask its driver for something, while it works."""

    def holder(self, number: int) -> Any:
        """Return what stands for a stored value, a future or an actor of the driver."""
        ...

    def stand_in(self, make: Callable[[int], Any]) -> None:
        """Have ``make(number)`` stand for what the driver has and did not send."""
        ...

    def note_packed(self, note: Any, packed: Any) -> None:
        """As ``notify``, with a packed value beside; closes it. ``PoolSpec.on_packed`` gets both."""
        ...

    def serve_calls(self, until: Callable[[], bool], timeout: float | None) -> None:
        """In the worker's own thread: carry out other calls until ``until()``; ``wake`` has it look again."""
        ...

    def wake(self) -> None:
        """Have ``serve_calls`` look again."""
        ...

    def is_own_thread(self) -> bool:
        """Say whether this is the thread in which calls run one after another."""
        ...


def _no_values(number: int, once: bool) -> Any:
    raise LookupError(f"value {number} was never lent to this worker")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a hosted object is told about the worker it lives in, and what it may ask of it.

    ``share(schema, batches)`` lays batches where other workers can read them, and returns a ``BlockRef``;
    ``fetch(ref)`` returns the batches of one, where they lie: they stay valid, and their memory in use, until the
    last reference to them is gone. ``release_unused()`` reports the blocks that are not looked at any more; call it
    now and then. ``preparing(what)`` tells what has to be done before the worker can work, such as loading a model;
    ``""`` that it is done.
    ``here``: it lives in the driver's own process, so that Python objects need not be pickled on their way.
    ``devices`` are the GPUs that it was given, by the names that CUDA knows; None: all that there are. In code that
    runs here they are numbered from 0. ``value(number, once)`` returns a value that the driver keeps and lent to this
    worker; ``once``: it will not be asked for again. ``line``: how calls make calls, where that is possible.
    """

    worker: int
    threads: int
    notify: Callable[[Any], None] = field(repr=False)
    share: Callable[[pa.Schema, Sequence[pa.RecordBatch]], BlockRef] = field(repr=False)
    fetch: Callable[[BlockRef], list[pa.RecordBatch]] = field(repr=False)
    release_unused: Callable[[], None] = field(repr=False)
    preparing: Callable[[str], None] = field(repr=False)
    devices: tuple[str, ...] | None = None
    value: Callable[[int, bool], Any] = field(default=_no_values, repr=False)
    line: DriverLine | None = field(default=None, repr=False)
    here: bool = False


class Pool(Protocol):
    """Identical workers, each hosting one object of the pool's factory."""

    def loads(self) -> dict[int, int]:
        """Return, for each live worker, how many calls it has not yet answered.

        Where workers have to be placed on a cluster, those that are not placed yet are not among them.
        """
        ...

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """Call ``method`` on the object of ``worker`` (default: the least loaded).

        Calls to one worker run one after another in the order of submission. An exception of the method is
        the future's; a worker that ends first gives ``WorkerDied``, ``NeverReady`` if it could not work yet, and
        the pool starts another in its place.
        The future's attribute ``worker`` names the worker.
        """
        ...

    def feed(self, worker: int, *args: Any) -> None:
        """Hand something to the object of ``worker``, whatever it is doing: ``feed(*args)`` is called on it at
        once, from another thread, in the order of feeding. A worker that is gone misses it.

        ``BlockRef``s and ``Block``s among the arguments of ``feed`` and ``submit`` are lent to the worker.
        """
        ...

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """Grow now, or shrink by ending idle workers, except those in ``keep``; it may stay bigger than asked."""
        ...

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """End a worker, if it is one of ours: its calls fail with ``reason``, and another takes its place.

        Without ``replace`` the pool has one worker less from then on, if it had more than one.
        """
        ...

    def memory(self) -> dict[int, int]:
        """Return the private memory of each live worker in bytes, with what it started; {} where nobody can tell.

        What workers share does not count. Called several times a second.
        """
        ...

    def dump(self) -> None:
        """Have every worker print the stacks of its threads to standard error, where it can."""
        ...

    def close(self) -> None:
        """End every worker, at once and without mercy for calls under way. May be called more than once."""
        ...


class Engine(Protocol):
    """A place where pools live: in processes of this machine, unless a class attribute ``traits`` says otherwise."""

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> Pool:
        """Start a pool; ``notify(worker, message)`` gets what hosted objects tell, from another thread.

        It also gets ``BlocksFreed``, when blocks that were lent are not looked at any more.
        """
        ...

    def hold(self, ref: BlockRef) -> None:
        """This block will be lent twice: it stays until the second reader has let go of it, or it is dropped."""
        ...

    def release(self, ref: BlockRef) -> None:
        """Nobody will be lent this block any more: its memory may be used again, once nobody reads it."""
        ...

    def same_machine(self, worker: int, other: int) -> bool:
        """Say whether blocks go from one worker to another without leaving a machine."""
        ...

    def close(self, *, kill: bool = False) -> None:
        """Close every pool and give back all memory. May be called more than once.

        With ``kill``, workers are not asked to end.
        """
        ...
