"""What is done, by whom, and what came of it: the records that travel and that are kept.

All of it is small, frozen and made of plain values; nothing here knows a file format or an engine.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec


class Split(msgspec.Struct, frozen=True, array_like=True):
    """The smallest unit that a source reads on its own.

    What ``file``, ``start`` and ``stop`` mean is the source's business: a row-group range of a file, a byte
    range, a range of small files. ``first`` is the number, within its file, of the split's first row.
    ``rows`` and ``first`` are -1 where only reading would tell; ``bytes`` is an estimate of the decoded size.
    ``low`` and ``high`` make it a window of a split: of its rows, those from ``low`` up to ``high``, or to the end if
    that is -1. A source reads all of the split; who asked for it takes the window.
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


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """An ordered list of splits: the unit of commit and of resume. ``index`` is its number.

    Numbers order the shards as they were planned. A part of one that was divided has a name, such as ``7.1``, and
    stands in the place of the 7.
    """

    index: int
    splits: tuple[Split, ...]
    name: str = ""

    @property
    def place(self) -> tuple[int, ...]:
        """Where it stands: places sort as rows do."""
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
            if split.length < 0:
                return -1
            total += split.length
        return total


class BlockRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a block lies: the engine's own words, which only it reads.

    ``size`` is the memory that it keeps in use, in bytes; ``length`` how much of that is the block.
    """

    owner: int
    slot: int
    size: int
    number: int
    length: int = 0


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    """Where every row went.

    ``read`` counts the rows of the source, those included that it could not make sense of; ``written`` those that
    reached the sink, ``rejected`` those set aside, ``nulled`` those kept with a null in the place of a result.
    ``steps`` has one ``(rows in, rows out)`` pair for each step of the plan, in order, and ``rejects`` how many rows
    each set aside. ``dropped``: how many each took away as it should (a filter, a limit, a function that gave fewer);
    ``added``: how many more than it got a function gave; ``unused``: those in it, or on their way to it, when a limit
    further on needed no more. Each number is counted where it happens; ``run.accounts`` checks that they agree.
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

    def __add__(self, other: Ledger) -> Ledger:
        steps = self.steps or tuple((0, 0) for _ in other.steps)
        more = other.steps or tuple((0, 0) for _ in steps)
        return Ledger(
            self.read + other.read,
            self.written + other.written,
            self.rejected + other.rejected,
            tuple((a + c, b + d) for (a, b), (c, d) in zip(steps, more, strict=True)),
            _summed(self.rejects, other.rejects),
            self.nulled + other.nulled,
            _summed(self.dropped, other.dropped),
            _summed(self.added, other.added),
            _summed(self.unused, other.unused),
        )


def _summed(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """Add up numbers of steps; none at all are zeros."""
    some, others = some or (0,) * len(others), others or (0,) * len(some)
    return tuple(a + b for a, b in zip(some, others, strict=True))


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """Why a row could not be processed: the step (or "the source"), the error's class and words."""

    step: str
    kind: str
    message: str


class Reject(msgspec.Struct, frozen=True, array_like=True):
    """A row that failed: row ``row`` of ``split``, or one of ``row`` … ``last`` if nobody knows which.

    ``kept``: it goes on with a null in the place of a result; else it is set aside. ``count``: so many rows, from
    ``row`` to ``last``, failed together, such as those of a damaged row group.
    """

    split: Split
    row: int
    last: int
    fault: Fault
    kept: bool = False
    count: int = 1


class Faults(msgspec.Struct, frozen=True, array_like=True):
    """How often rows failed, by step and class of the error, each with the words of one of them."""

    counts: tuple[tuple[Fault, int], ...] = ()

    MOST: ClassVar[int] = 50  # kinds that are told apart

    @property
    def total(self) -> int:
        """How many rows failed."""
        return sum(count for _, count in self.counts)

    def __add__(self, other: Faults) -> Faults:
        summed: dict[tuple[str, str], tuple[Fault, int]] = {}
        for fault, count in (*self.counts, *other.counts):
            key = fault.step, fault.kind
            if key not in summed and len(summed) >= self.MOST:
                key, fault = ("", ""), Fault("", "", "errors of many other kinds")
            first, before = summed.get(key, (fault, 0))
            summed[key] = first, before + count
        return Faults(tuple(summed.values()))


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """Rows ``first`` … ``last`` of ``split``, among which some end their worker: at most ``size`` at a time."""

    split: Split
    first: int
    last: int
    size: int


class Caution(msgspec.Struct, frozen=True):
    """What is known of rows that end their worker.

    ``watched``: calls of the user's code are told to the driver, before and after. ``skip``: rows that are guilty.
    """

    watched: bool = False
    suspects: tuple[Suspect, ...] = ()
    skip: tuple[Reject, ...] = ()


class Handed(msgspec.Struct, frozen=True):
    """How far a reader has come with a shard: all that came of the rows before row ``row`` of its ``split``-th split,
    and ``count`` rows of what came of that one."""

    split: int
    row: int
    count: int


class Task(msgspec.Struct, frozen=True):
    """One attempt at a shard, as a worker gets it.

    ``schema`` is the settled output schema (Arrow IPC bytes) or None while it is open. ``budgets`` holds, for
    each ``limit`` step in order, how many rows may pass it in this shard; ``ceilings``, by the labels of steps, how
    many rows at a time are known to fit into memory. After ``every`` seconds the attempt may leave the rest of its
    shard to another; 0: never. ``after``: what a reader has of the shard from an attempt before.
    """

    shard: Shard
    attempt: int
    schema: bytes | None = None
    budgets: tuple[int, ...] = ()
    caution: Caution = Caution()
    ceilings: dict[str, int] = {}
    every: float = 0.0
    after: Handed | None = None


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A batch that crosses a process border between two stages, by reference.

    ``spans`` say where its rows come from; they travel as bytes that only workers read. ``rejects`` are the rows that
    failed on the way to it. ``read``: so many rows of the source were read for it.
    """

    ref: BlockRef
    rows: int
    spans: bytes = b""
    rejects: tuple[Reject, ...] = ()
    read: int = 0


class Tail(msgspec.Struct, frozen=True):
    """The rows that failed behind the last block of a piece."""

    rejects: tuple[Reject, ...]


class Piece(msgspec.Struct, frozen=True):
    """What one worker of a stage before the last works on: splits of a shard, or blocks of the stage before.

    They are neighbours. The first ``skip`` rows are left to the piece before, and those behind the next ``rows``
    (None: none) to the one after. ``number`` names this try at it; ``budgets`` are those of the stage's ``limit``
    steps; ``ceilings`` as in ``Task``.
    """

    shard: int
    number: int
    splits: tuple[Split, ...] = ()
    blocks: tuple[Block | Tail, ...] = ()
    budgets: tuple[int, ...] = ()
    caution: Caution = Caution()
    skip: int = 0
    rows: int | None = None
    ceilings: dict[str, int] = {}


REJECTED = "_rejected"
"""The folder in an output where rejected rows are."""


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that an attempt wrote: its staged name, its final name, and what is in it."""

    staged: str
    name: str
    rows: int
    size: int
    crc32: int

    @property
    def is_part(self) -> bool:
        """True if a reader of the output reads it: it holds no rejected rows."""
        return not self.name.startswith(f"{REJECTED}/")


class SideFile(msgspec.Struct, frozen=True, array_like=True):
    """The state of an accumulator that is too big for a record: a file of the run that is named by its SHA-256."""

    sha256: str
    size: int


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of one attempt by what the worker did."""

    read: float = 0.0
    steps: float = 0.0
    write: float = 0.0
    wait: float = 0.0

    def __add__(self, other: Timings) -> Timings:
        return Timings(
            self.read + other.read,
            self.steps + other.steps,
            self.write + other.write,
            self.wait + other.wait,
        )


class ErrorReport(msgspec.Struct, frozen=True):
    """An error as it crosses a process border: its class in our tree, its words, the user's traceback."""

    kind: str
    message: str
    traceback: str = ""
    original: bytes | None = None


class Remainder(msgspec.Struct, frozen=True):
    """What an attempt left of its shard: from row ``row`` of its ``split``-th split on. ``rows`` were done."""

    split: int
    row: int
    rows: int


class Done(msgspec.Struct, frozen=True):
    """The attempt went through its whole shard, or through all of it but ``rest``.

    ``schema`` is the output schema if the attempt saw one, even without rows; ``passed`` says, for each
    ``limit`` step, how many rows passed it; ``taken`` how many blocks of the stage before it took, None for all;
    ``faults`` why rows failed; ``states`` what each accumulator of the plan has counted.
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


class Proposal(msgspec.Struct, frozen=True):
    """The attempt has its first rows and waits for the output schema to be settled; it proposes its own.

    ``last``: no later rows will tell more, a ``limit`` is used up.
    """

    shard: int
    attempt: int
    schema: bytes
    last: bool = False


class Deferred(msgspec.Struct, frozen=True):
    """The attempt gave up for now: some column held nothing but nulls, so its type is still open."""

    shard: int
    attempt: int
    schema: bytes


class Blocks(msgspec.Struct, frozen=True):
    """Output batches (an Arrow IPC stream) on their way to a reader; the attempt waits to be told to go on.

    ``until``: how far the reader has come with these.
    """

    shard: int
    attempt: int
    data: bytes
    until: Handed | None = None


class Failed(msgspec.Struct, frozen=True):
    """The attempt met an error that trying again would not cure."""

    shard: int
    attempt: int
    error: ErrorReport


class Lost(msgspec.Struct, frozen=True):
    """The worker died under the attempt; nobody knows more than the way it went.

    ``blame`` False: the shard has nothing to do with it. What it was fed is lost, or the worker was not yet ready.
    """

    shard: int
    attempt: int
    reason: str
    blame: bool = True


class Made(msgspec.Struct, frozen=True):
    """A piece gave its next block; there may be more. ``ledger`` is that of the stage, so far."""

    piece: int
    block: Block
    ledger: Ledger = Ledger()


class Ended(msgspec.Struct, frozen=True):
    """A piece has given all its blocks; ``rejects`` failed after the last one."""

    piece: int
    ledger: Ledger
    timings: Timings
    rejects: tuple[Reject, ...] = ()


class Broken(msgspec.Struct, frozen=True):
    """A piece met an error that trying again would not cure."""

    piece: int
    error: ErrorReport


class Gone(msgspec.Struct, frozen=True):
    """The worker died under a call for a piece. ``blame`` as in ``Lost``."""

    piece: int
    worker: int
    reason: str
    blame: bool = True


class Squeeze(msgspec.Struct, frozen=True):
    """Memory gets short: a worker is to give the user's code half as many rows at a time."""


class Freed(msgspec.Struct, frozen=True):
    """Nobody looks at these blocks any more."""

    numbers: tuple[int, ...]


class Waiting(msgspec.Struct, frozen=True):
    """The worker that writes a shard has used up the ``taken`` blocks that it was fed, and waits for the next."""

    shard: int
    attempt: int
    taken: int


class Finishing(msgspec.Struct, frozen=True):
    """All rows of an attempt went through the steps: its part is encoded and made to last beside the next one."""

    shard: int
    attempt: int


class Calling(msgspec.Struct, frozen=True):
    """A worker begins a call of the user's code, number ``call`` of its own, over these rows of a shard.

    ``rows`` has (split, first, last) for each stretch of them; ``count`` is how many there are, if they still are the
    rows of the source.
    """

    worker: int
    call: int
    shard: int
    step: str
    rows: tuple[tuple[Split, int, int], ...]
    count: int


class Called(msgspec.Struct, frozen=True):
    """A call has ended, well or not."""

    worker: int
    call: int


Progress = Made | Ended | Broken | Gone
Outcome = Done | Proposal | Deferred | Blocks | Failed | Lost


class CommitRecord(msgspec.Struct, frozen=True, tag="commit", array_like=True):
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


def tell(value: Any) -> str:
    """Return a short ``repr`` fit for one line of a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
