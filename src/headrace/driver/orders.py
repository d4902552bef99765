"""The orders of the scheduler: what the loop is to ask of workers."""

from __future__ import annotations

import msgspec

from headrace.core.work import Task


class Begin(msgspec.Struct, frozen=True):
    """Begin an attempt on a worker."""

    worker: int
    task: Task


class Prepare(msgspec.Struct, frozen=True):
    """Have the stages before make what an attempt will need; ``Begin`` comes when the worker is free for it."""

    worker: int
    task: Task


class Proceed(msgspec.Struct, frozen=True):
    """Let a paused attempt go on, with the schema that was settled meanwhile."""

    worker: int
    shard: int
    attempt: int
    schema: bytes | None


Order = Begin | Prepare | Proceed
