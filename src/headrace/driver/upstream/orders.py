"""The orders of the upstream scheduler: what is to be asked of workers, and what becomes of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.work import Block, BlockRef, Task, TrailingRejects


@dataclass(frozen=True, slots=True)
class BeginTask:
    """Ask a worker of ``stage`` to begin a task, and for its first block."""

    stage: int
    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class NextBlock:
    """Ask for the next block of a task."""

    stage: int
    worker: int
    shard: int
    task: int


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Tell a worker that a task is not needed any more."""

    stage: int
    worker: int
    shard: int
    task: int


@dataclass(frozen=True, slots=True)
class SendBlock:
    """Send a block to the worker that has an attempt open; None: that was the last one."""

    worker: int
    shard: int
    attempt: int
    block: Block | TrailingRejects | None


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Have a worker give up an attempt that cannot go on: some of the blocks that it needs are lost."""

    worker: int
    shard: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class KeepBlock:
    """Hold a block until two tasks have read it."""

    ref: BlockRef


@dataclass(frozen=True, slots=True)
class DropBlock:
    """Let go of a block that nobody will read."""

    ref: BlockRef


UpstreamOrder = BeginTask | NextBlock | CancelTask | SendBlock | EndAttempt | KeepBlock | DropBlock
