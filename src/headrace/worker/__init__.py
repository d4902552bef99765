"""What runs in a worker process: one attempt at a shard, from the source to the file that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.engine_ports import WorkerContext
    from headrace.plan.physical import Program


def hosted_stage(program: Program, context: WorkerContext) -> Any:
    """Return what carries out the tasks of a stage. For the driver, which imports nothing else of this room."""
    from headrace.worker.stage_worker import StageWorker

    return StageWorker(program, context)
