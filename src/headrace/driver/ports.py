"""What the loop asks for, and what it needs from outside: orders; a committer, an observer, a clock, an inbox."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from headrace.core.arrow.batch import from_ipc
from headrace.core.arrow.objects import unpacked, with_own_objects
from headrace.core.events import Event
from headrace.core.metric_states import States, merge
from headrace.core.model_ports import Accumulator, ObserverParts
from headrace.core.work import (
    Block,
    BlockRef,
    CommitRecord,
    Delivered,
    Faults,
    Ledger,
    Outcome,
    OutputBlocks,
    Shard,
    Task,
    Timings,
    TrailingRejects,
)


class Committer(Protocol):
    """Takes commit records and makes them durable."""

    def settle(self, schema: bytes) -> bytes:
        """Make the output schema durable, before any worker opens a part with it; return the one that counts."""
        ...

    @property
    def ceilings(self) -> dict[str, int]:
        """The most rows at a time that fit into memory, by the labels of steps, as far as that is known."""
        ...

    def lower(self, step: str, rows: int) -> None:
        """Record a lower ceiling; durable from the next ``commit_accepted`` on."""
        ...

    def accept(self, record: CommitRecord) -> None:
        """Accept a record; durable from the next ``commit_accepted`` on."""
        ...

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        """Record that a shard is replaced by parts; durable at once, or by ``commit_accepted`` if ``early``."""
        ...

    def extend(self, shards: Sequence[Shard]) -> None:
        """Record further shards, whose numbers follow the last one; durable with their commits."""
        ...

    def commit_accepted(self, *, wait: bool = True) -> None:
        """Make everything accepted so far durable; without ``wait``, as much of it as can be at once."""
        ...

    @property
    def pending(self) -> bool:
        """True while something waits for ``commit_accepted``."""
        ...


class NoObserver(ObserverParts):
    """Ignores everything. What watches a run inherits from it."""

    def on_event(self, event: Event) -> None:
        """Ignore it."""


class RunPorts(msgspec.Struct, frozen=True):
    """Who watches a run, what time it is, and where answers and messages arrive, from any thread."""

    observer: NoObserver = msgspec.field(default_factory=NoObserver)
    clock: Callable[[], float] = time.monotonic
    inbox: Any = msgspec.field(default_factory=queue.SimpleQueue)
    sleep: Callable[[float], None] = time.sleep


class Begin(msgspec.Struct, frozen=True):
    """Have a worker of ``stage`` begin an attempt."""

    stage: int
    worker: int
    task: Task


class Proceed(msgspec.Struct, frozen=True):
    """Let an attempt go on that waits: with the schema that was settled meanwhile, or to its next block."""

    stage: int
    worker: int
    shard: int
    attempt: int
    schema: bytes | None = None


class GiveUp(msgspec.Struct, frozen=True):
    """Tell a worker that an attempt is not needed any more."""

    stage: int
    worker: int
    shard: int
    attempt: int


class Feed(msgspec.Struct, frozen=True):
    """Send a block to a worker of the last stage; None: that was the last one.

    A text is the reason why the attempt has to be given up: some of the blocks that it needs are lost.
    """

    worker: int
    shard: int
    attempt: int
    item: Block | TrailingRejects | str | None


class KeepBlock(msgspec.Struct, frozen=True):
    """Hold a block until two tasks have read it."""

    ref: BlockRef


class DropBlock(msgspec.Struct, frozen=True):
    """Let go of a block that nobody will read."""

    ref: BlockRef


Order = Begin | Proceed | GiveUp | Feed | KeepBlock | DropBlock


# ---------------------------------------------------------------- runs that write nothing


class InMemoryCommitter:
    """Adds up ledgers, and merges the states of ``metrics`` in the order of shards; nothing is durable."""

    pending = False

    def __init__(self, metrics: Sequence[tuple[str, Accumulator]] = ()) -> None:
        self._metrics = metrics
        self._totals = [metric.empty() for _, metric in metrics]
        self._unmerged: dict[int, States] = {}  # by shard, until all shards before it are merged
        self._next = 0
        self.ledger = Ledger()
        self.timings = Timings()
        self.faults = Faults()
        self.ceilings: dict[str, int] = {}
        self.on_committed: Callable[[CommitRecord], None] = _ignored

    def settle(self, schema: bytes) -> bytes:
        """There is nothing to make durable."""
        return schema

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        """There is nothing to make durable."""

    def extend(self, shards: Sequence[Shard]) -> None:
        """There is nothing to make durable."""

    def lower(self, step: str, rows: int) -> None:
        """Record a lower ceiling."""
        self.ceilings[step] = rows

    def accept(self, record: CommitRecord) -> None:
        """Add a record's counts."""
        self.ledger += record.ledger
        self.timings += record.timings
        self.faults += record.faults
        if self._metrics:
            self._unmerged[record.shard] = record.states
            while self._next in self._unmerged:
                self._merge(self._next)
                self._next += 1
        self.on_committed(record)

    def _merge(self, shard: int) -> None:
        merge(self._totals, self._unmerged.pop(shard))

    def totals(self) -> list[Accumulator]:
        """Return the metrics of all shards, once all are committed."""
        for shard in sorted(self._unmerged):
            self._merge(shard)
        return self._totals

    def commit_accepted(self, *, wait: bool = True) -> None:
        """There is nothing to make durable."""


def _ignored(record: CommitRecord) -> None:
    """Nobody watches."""


class ReaderOutput:
    """Holds batches back until it is their turn, and remembers what the reader has of each shard."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[OutputBlocks]] = {}  # by shard
        self._delivered: dict[int, Delivered] = {}  # by shard, until it is committed

    def delivered(self, shard: int) -> Delivered | None:
        """Begin a new attempt at a shard: return what the reader has of it, which the attempt leaves out."""
        self._blocks.pop(shard, None)  # of an attempt that was lost before its turn
        return self._delivered.get(shard)

    def add(self, outcome: Outcome) -> None:
        """Add an attempt's batches, if the outcome has any."""
        if isinstance(outcome, OutputBlocks):
            self._blocks.setdefault(outcome.shard, []).append(outcome)

    def committed(self, shard: int) -> None:
        """A shard is committed: no attempt at it will begin."""
        self._delivered.pop(shard, None)

    def ready(self, head: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the shards up to ``head``, the first that is not committed."""
        if not self._blocks:
            return
        for shard in sorted(self._blocks):
            if shard > head:
                return
            for block in self._blocks.pop(shard):
                if block.until is not None:
                    self._delivered[shard] = block.until
                for batch in from_ipc(block.data):
                    yield with_own_objects(batch) if block.alive else unpacked(batch, block.objects)
