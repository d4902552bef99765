"""What makes the object that a worker hosts: the driver names these, and imports nothing of this room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.engine_ports import WorkerContext
    from headrace.plan.physical import Program


def shard_worker(program: Program, context: WorkerContext) -> Any:
    """Return what carries out the attempts of the last stage."""
    from headrace.worker.shard_worker import ShardWorker

    return ShardWorker(program, context)


def upstream_worker(program: Program, context: WorkerContext) -> Any:
    """Return what makes the blocks of an earlier stage."""
    from headrace.worker.upstream import UpstreamWorker

    return UpstreamWorker(program, context)
