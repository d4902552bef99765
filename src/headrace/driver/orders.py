"""The orders of the scheduler: what the loop is to ask of workers."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.work import Task


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin an attempt on a worker."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the stages before make what an attempt will need; ``Begin`` comes when the worker is free for it."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Proceed:
    """Let a paused attempt go on, with the schema that was settled meanwhile."""

    worker: int
    shard: int
    schema: bytes | None


Order = Begin | Prepare | Proceed
