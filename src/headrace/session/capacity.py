"""How much memory the blocks of a run may use, and which GPUs are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.engines.local import machine
from headrace.options import RunOptions

if TYPE_CHECKING:
    from headrace.core.engine_ports import Capacity
    from headrace.plan.steps.base import Step

BLOCKS_SHARE = 4  # blocks between stages may use one part in so many of the memory limit
STORE_SHARE = 2  # and of a cluster's object stores


def block_budget(options: RunOptions, memory: int) -> int:
    """Return how many bytes the blocks between stages may use.

    ``memory`` is that of the machine's or container's processes, or of all object stores of a cluster.
    """
    if options.traits.is_cluster and not options.memory_limit:
        return memory // STORE_SHARE
    return (options.memory_limit or memory) // BLOCKS_SHARE


def missing_gpus(steps: Sequence[Step], capacity: Capacity) -> str:
    """Say which GPUs a process that runs all steps itself does without; "" if there are enough."""
    asked, step = max(((_gpus(step), step.label()) for step in steps), default=(0.0, ""))
    if asked <= capacity.gpus:
        return ""
    there = (
        f"has {capacity.gpus}: it runs with what there is"
        if capacity.gpus
        else "has none: it runs on the CPU"
    )
    return f"{step} asks for {asked:g} GPU{'' if asked == 1 else 's'}, and this machine {there}, in this process."


def lacks_gpus(steps: Sequence[Step]) -> bool:
    """Say whether a step asks for a GPU, and this machine has none."""
    return any(map(_gpus, steps)) and not machine.devices()


def _gpus(step: Step) -> float:
    return max((needs.num_gpus or 0.0 for needs in step.needs()), default=0.0)
