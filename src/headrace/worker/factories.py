"""What makes the object that a worker hosts: the driver names this, and imports nothing of this room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.engine_ports import WorkerContext
    from headrace.plan.physical import Program


def stage_worker(program: Program, context: WorkerContext) -> Any:
    """Return what carries out the tasks of a stage."""
    from headrace.worker.stage_worker import StageWorker

    return StageWorker(program, context)
