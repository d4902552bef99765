"""What the loop asks for, and what it needs from outside: orders; a committer, an observer, a clock, an inbox."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from headrace.core.events import Event
from headrace.core.model_ports import ObserverParts
from headrace.core.work import Block, BlockRef, CommitRecord, Shard, Task, TrailingRejects


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


class Inbox(Protocol):
    """Where answers and messages arrive, from any thread; raises ``queue.Empty`` as ``queue.SimpleQueue`` does."""

    def put(self, message: Any) -> None:
        """Add a message."""
        ...

    def get(self, *, timeout: float) -> Any:
        """Return the next message; waits for at most ``timeout`` seconds."""
        ...

    def get_nowait(self) -> Any:
        """Return the next message."""
        ...


class BlockHolder(Protocol):
    """Whoever holds the blocks between stages: an engine."""

    def hold(self, ref: BlockRef) -> None:
        """Hold a block for two readers."""
        ...

    def release(self, ref: BlockRef) -> None:
        """Let go of a block that nobody will read."""
        ...


class NoObserver(ObserverParts):
    """Ignores everything. What watches a run inherits from it."""

    def on_event(self, event: Event) -> None:
        """Ignore it."""


class RunPorts(msgspec.Struct, frozen=True):
    """Who watches a run, what time it is, and where messages arrive."""

    observer: NoObserver = msgspec.field(default_factory=NoObserver)
    clock: Callable[[], float] = time.monotonic
    inbox: Inbox = msgspec.field(default_factory=queue.SimpleQueue)
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
