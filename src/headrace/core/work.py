"""The records that driver and workers exchange, and those that the journal keeps.

All are small, frozen and made of plain values; nothing here knows a file format or an engine. Of some there are
millions (``gc=False``): as none can hold itself, Python need not look through them for cycles.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from headrace.core.answered import Answered, both


class Split(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The smallest unit that a source reads on its own.

    The source defines what ``file``, ``start`` and ``stop`` mean: a row-group range of a file, a byte range, a range
    of small files. ``first`` is the index, within its file, of the split's first row. ``rows`` and ``first`` are -1
    where only reading would tell; ``bytes`` is an estimate of the decoded size. ``low`` and ``high`` select a window
    of its rows: from ``low`` up to ``high``, or to the end if that is -1. A source reads the whole split; the caller
    cuts out the window.
    """

    file: int
    start: int
    stop: int
    rows: int = -1
    bytes: int = 0
    first: int = 0
    low: int = 0
    high: int = -1

    @property
    def length(self) -> int:
        """Rows in the window if they are known, else -1."""
        if self.rows < 0:
            return self.high - self.low if self.high >= 0 else -1
        return max(0, (self.rows if self.high < 0 else min(self.high, self.rows)) - self.low)


class Shard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An ordered list of splits: the unit of commit and of resume. ``index`` is its number.

    Numbers order the shards as they were planned. A part of a divided shard has a name, such as ``7.1``, and sorts
    where shard 7 would.
    """

    index: int
    splits: tuple[Split, ...]
    name: str = ""

    @property
    def place(self) -> tuple[int, ...]:
        """The sort key of the shard: shards sort as their rows do."""
        return tuple(map(int, self.name.split("."))) if self.name else (self.index,)

    def label(self, digits: int = 1) -> str:
        """Return its name with at least so many digits; labels of equally many digits sort as rows do.

        >>> Shard(7, ()).label(5), Shard(12, (), "7.1").label(5)
        ('00007', '00007.1')
        """
        number, dot, rest = self.name.partition(".") if self.name else (str(self.index), "", "")
        return f"{number.zfill(digits)}{dot}{rest}"

    @property
    def rows(self) -> int:
        """Input rows if every split knows its own, else -1."""
        total = 0
        for split in self.splits:
            length = split.length
            if length < 0:
                return -1
            total += length
        return total

    @property
    def size(self) -> int:
        """Bytes of its input, as the source estimates them; a split that shards share is in the first of them."""
        return sum(split.bytes for split in self.splits if not split.low)


class BlockRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a block lies; only the engine interprets it.

    ``size`` is the memory that it occupies, in bytes; ``length`` how much of that is the block.
    """

    owner: int
    slot: int
    size: int
    number: int
    length: int = 0


class Ledger(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where every row went.

    ``read`` counts the rows of the source, those included that it could not make sense of; ``written`` those that
    reached the sink, ``rejected`` those that were rejected, ``nulled`` those that failed and go on with a null
    instead of a result. ``steps`` has one ``(rows in, rows out)`` pair for each step of the plan, in order, and
    ``rejects`` how many rows each step rejected. ``dropped``: how many rows each step removed as intended (a filter,
    a limit, a function that returned fewer); ``added``: how many rows more than its input a function returned;
    ``unused``: rows in a step, or on their way to it, when a later limit needed no more; ``past``: rows that go past
    a step, which is one of other datasets of a union. ``answered``: what language models said to them. ``gathered``:
    rows of other datasets that queries before the run took in; what they became is ``read``. Each number is counted
    where it happens; ``plan.accounts`` checks that they agree.
    """

    read: int = 0
    written: int = 0
    rejected: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    rejects: tuple[int, ...] = ()
    nulled: int = 0
    dropped: tuple[int, ...] = ()
    added: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()
    past: tuple[int, ...] = ()
    answered: Answered | None = None
    gathered: int = 0

    def __add__(self, other: Ledger) -> Ledger:
        steps = self.steps or other.steps
        if self.steps and other.steps:
            steps = tuple((a + c, b + d) for (a, b), (c, d) in zip(self.steps, other.steps, strict=True))
        return Ledger(
            self.read + other.read,
            self.written + other.written,
            self.rejected + other.rejected,
            steps,
            _summed(self.rejects, other.rejects),
            self.nulled + other.nulled,
            _summed(self.dropped, other.dropped),
            _summed(self.added, other.added),
            _summed(self.unused, other.unused),
            _summed(self.past, other.past),
            both(self.answered, other.answered),
            self.gathered + other.gathered,
        )


def _summed(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """Add up counts per step; an empty tuple counts as zeros."""
    if not (some and others):
        return some or others
    return tuple(a + b for a, b in zip(some, others, strict=True))


class Fault(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a row could not be processed: the step (or "the source"), and the error's class and message."""

    step: str
    kind: str
    message: str


class Reject(msgspec.Struct, frozen=True, array_like=True):
    """A row that failed: row ``row`` of ``split``, or one of ``row`` … ``last`` if it is not known which.

    ``kept``: it goes on with a null instead of a result; otherwise it is rejected. ``count``: how many of the rows
    from ``row`` to ``last`` failed together, such as those of a damaged row group.
    """

    split: Split
    row: int
    last: int
    fault: Fault
    kept: bool = False
    count: int = 1


class Faults(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many rows failed, by step and class of the error, each with the message of one of them."""

    counts: tuple[tuple[Fault, int], ...] = ()

    MOST: ClassVar[int] = 50  # kinds that are counted separately

    @property
    def total(self) -> int:
        """How many rows failed."""
        return sum(count for _, count in self.counts)

    def __add__(self, other: Faults) -> Faults:
        if not other.counts:
            return self
        summed: dict[tuple[str, str], tuple[Fault, int]] = {}
        for fault, count in (*self.counts, *other.counts):
            key = fault.step, fault.kind
            if key not in summed and len(summed) >= self.MOST:
                key, fault = ("", ""), Fault("", "", "errors of many other kinds")
            first, before = summed.get(key, (fault, 0))
            summed[key] = first, before + count
        return Faults(tuple(summed.values()))


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """Rows ``first`` … ``last`` of ``split``, some of which kill their worker; run at most ``size`` at a time."""

    split: Split
    first: int
    last: int
    size: int


class PoisonRows(msgspec.Struct, frozen=True):
    """What is known of rows that kill their worker.

    ``watched``: the worker reports the start and end of each call of the user's code. ``suspects``: rows among which
    some may be poison rows. ``skip``: rows that are poison rows; they are rejected unread.
    """

    watched: bool = False
    suspects: tuple[Suspect, ...] = ()
    skip: tuple[Reject, ...] = ()


class Delivered(msgspec.Struct, frozen=True):
    """What a reader has got of a shard: all output of the rows before row ``row`` of its ``split``-th split, and
    ``count`` rows of the output of that row."""

    split: int
    row: int
    count: int


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A batch that crosses a process border between two stages, by reference.

    ``spans`` are the coordinates of its rows, encoded; only workers decode them. ``rejects`` are the rows that failed
    before it. ``read`` is how many rows of the source were read for it. ``objects``: the columns whose Python objects
    are pickled.
    """

    ref: BlockRef
    rows: int
    spans: bytes = b""
    rejects: tuple[Reject, ...] = ()
    read: int = 0
    objects: tuple[int, ...] = ()


class TrailingRejects(msgspec.Struct, frozen=True):
    """The rows that failed after the last block of a task."""

    rejects: tuple[Reject, ...]


class Task(msgspec.Struct, frozen=True):
    """One attempt at a shard, or at a part of one where its rows go to the next stage, as a worker gets it.

    ``schema`` is the settled output schema (Arrow IPC bytes) or None while it is open. ``budgets`` holds, for
    each ``limit`` step in order, how many rows may pass it in this shard; ``ceilings``, by the labels of steps, how
    many rows at a time fit into memory. After ``every`` seconds the attempt may end early and leave the rest of its
    shard to another one; 0: never. ``after``: what a reader has got of the shard from an earlier attempt.
    ``asks_schema``: the attempt ends once it can say what the schema of its rows is. ``decodes``: no column is copied
    as it is stored, so all of them are read. ``shared``: the attempt may be asked to leave a part of its shard to
    another worker. ``behind``: so many files of the shard are there already, beside which it writes others.
    ``on_error``: instead of what the program says, if it is not None.

    In a stage before the last, the shard's ``splits`` are some neighbouring ones of it, or there are ``blocks``:
    neighbouring ones of the stage before. The first ``skip`` rows belong to the task before, and those after the next
    ``rows`` (None: all) to the task after. The number of the attempt is one that no other task of the stages has.
    """

    shard: Shard
    attempt: int
    schema: bytes | None = None
    budgets: tuple[int, ...] = ()
    poison_rows: PoisonRows = PoisonRows()
    ceilings: dict[str, int] = {}
    every: float = 0.0
    shared: bool = False
    after: Delivered | None = None
    asks_schema: bool = False
    decodes: bool = False
    on_error: OnError | None = None
    blocks: tuple[Block | TrailingRejects, ...] = ()
    skip: int = 0
    rows: int | None = None
    behind: int = 0


REJECTED = "_rejected"
HOME = "_headrace"
SUCCESS = "_SUCCESS"
FLEET, NOTES, RATES = "fleet", "notes", "rates"
"""The folder in an output where rejected rows are."""


class StagedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that an attempt wrote: its staged name, its final name, rows, size and checksum."""

    staged: str
    name: str
    rows: int
    size: int
    crc32: int

    @property
    def is_part(self) -> bool:
        """True if a reader of the output reads it: it holds no rejected rows."""
        return not self.name.startswith(f"{REJECTED}/")


class SideFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of an accumulator that is too big for a record: a file of the run that is named by its SHA-256."""

    sha256: str
    size: int


class Timings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Seconds of one attempt by what the worker did.

    ``decode`` is what a source spent on decoding, which is no part of ``read``. ``each`` has the seconds of each of
    the worker's steps, ``metrics`` those of counting metrics; both are parts of ``steps``. Steps of several attempts
    need not be the same, so a sum has no ``each``. ``cpu`` is processor time of all threads of the worker's process.
    """

    read: float = 0.0
    steps: float = 0.0
    write: float = 0.0
    wait: float = 0.0
    decode: float = 0.0
    metrics: float = 0.0
    each: tuple[float, ...] = ()
    cpu: float = 0.0

    def __add__(self, other: Timings) -> Timings:
        return Timings(
            self.read + other.read,
            self.steps + other.steps,
            self.write + other.write,
            self.wait + other.wait,
            self.decode + other.decode,
            self.metrics + other.metrics,
            cpu=self.cpu + other.cpu,
        )


class ErrorReport(msgspec.Struct, frozen=True):
    """An error as it crosses a process border: its class in our tree, its message, the user's traceback.

    ``row`` has the values of a row that the message shows.
    """

    kind: str
    message: str
    traceback: str = ""
    original: bytes | None = None
    row: str = ""


class Remainder(msgspec.Struct, frozen=True):
    """The rest of a shard, which an attempt did not read: from row ``row`` of split ``split``; ``rows`` are done."""

    split: int
    row: int
    rows: int


class Done(msgspec.Struct, frozen=True):
    """The attempt processed its whole shard, or all of it but ``rest``.

    ``schema`` is the output schema if the attempt saw one, even without rows; ``passed`` how many rows passed each
    ``limit`` step; ``taken`` how many blocks of the stage before it consumed, None for all; ``faults`` why rows
    failed; ``states`` the state of each accumulator of the plan. ``rejects`` are the rows that failed after the last
    block, where the rows went to the next stage.
    """

    shard: int
    attempt: int
    files: tuple[StagedFile, ...]
    ledger: Ledger
    timings: Timings
    schema: bytes | None = None
    passed: tuple[int, ...] = ()
    taken: int | None = None
    faults: Faults = Faults()
    states: tuple[bytes | SideFile, ...] = ()
    rest: Remainder | None = None
    rejects: tuple[Reject, ...] = ()


class Proposal(msgspec.Struct, frozen=True):
    """The attempt has its first rows, proposes their schema, and waits until the output schema is settled.

    ``last``: no further rows will come, as a ``limit`` is reached.
    """

    shard: int
    attempt: int
    schema: bytes
    last: bool = False


class Deferred(msgspec.Struct, frozen=True):
    """The attempt ended without a result: a column held only nulls, so its type is not known yet."""

    shard: int
    attempt: int
    schema: bytes


class OutputBlocks(msgspec.Struct, frozen=True):
    """Output batches for a reader (an Arrow IPC stream); the attempt waits for ``proceed``.

    ``until``: what the reader has got of the shard with these. ``objects``: the columns of Python objects, which are
    pickled; in the driver's own process they are not, but ``alive`` until the batches are read.
    """

    shard: int
    attempt: int
    data: bytes
    until: Delivered | None = None
    objects: tuple[int, ...] = ()
    alive: Any = None


class ObjectsPickled(msgspec.Struct, frozen=True):
    """The Python objects of a column were pickled, as they leave their process; ``kinds`` names their types."""

    column: str
    kinds: str


class Failed(msgspec.Struct, frozen=True):
    """The attempt failed with an error that a retry would not cure."""

    shard: int
    attempt: int
    error: ErrorReport


class AttemptLost(msgspec.Struct, frozen=True):
    """The worker died during the attempt.

    ``charged``: this counts as a failed attempt of the shard. It does not if its input blocks were lost, or if the
    worker was not ready yet. ``decodes``: no worker died, but columns that the stages before left out cannot be
    copied; the next attempt decodes them.
    """

    shard: int
    attempt: int
    reason: str
    charged: bool = True
    decodes: bool = False


class BlockMade(msgspec.Struct, frozen=True):
    """The attempt made its next block for the next stage. ``ledger`` is what the stage counted so far."""

    shard: int
    attempt: int
    block: Block
    ledger: Ledger = Ledger()


Pause = Proposal | OutputBlocks | BlockMade
"""What an attempt says before it waits for ``proceed``."""
Outcome = Done | Deferred | Failed | AttemptLost | Pause


class CommitRecord(msgspec.Struct, frozen=True, tag="commit", array_like=True, gc=False):
    """The record whose append to the journal *is* the commit of a shard."""

    shard: int
    attempt: int
    revision: int
    files: tuple[StagedFile, ...]
    ledger: Ledger
    timings: Timings = Timings()
    passed: tuple[int, ...] = ()
    states: tuple[bytes | SideFile, ...] = ()
    faults: Faults = Faults()


Durability = Literal["power", "process"]
OnError = Literal["raise", "reject", "null"]
