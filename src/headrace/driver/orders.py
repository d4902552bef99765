"""The orders of the scheduler: what the loop is to ask of workers, and what becomes of blocks."""

from __future__ import annotations

import msgspec

from headrace.core.work import Block, BlockRef, Task, TrailingRejects


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
