"""The engines that there are: what each has, and how it is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.core.door import install_hint
from headrace.core.engine_ports import Capacity, Engine
from headrace.engines.local import machine
from headrace.engines.local.pool import LocalEngine
from headrace.engines.local.spawner import Starting
from headrace.errors import MissingLibrary
from headrace.options import RunOptions

if TYPE_CHECKING:
    from headrace.core.engine_ports import Capacity
    from headrace.plan.steps.base import Step


def capacity_for(options: RunOptions) -> Capacity:
    """Return the cores, memory and GPUs of this machine, or of the cluster, to which this connects."""
    if not options.traits.is_cluster:
        return machine.capacity()
    ray = options.ray
    _ray_cluster().connect(ray.address or "", allow_unauthenticated=ray.allow_unauthenticated)
    found: Capacity = _ray_cluster().capacity()
    return found


_PRELOAD = ("numpy", "pyarrow.parquet", "headrace.worker.stage_worker")  # what workers need whatever the plan


def open_engine(
    options: RunOptions,
    warm: int,
    threads: int,
    budget: int,
    imports: tuple[str, ...] = (),
    libraries: tuple[str, ...] = (),
) -> Engine:
    """Open the engine of a run; on this machine, it starts ``warm`` workers already, with ``threads`` threads each,
    or one from which the others are forked.

    ``budget``: the memory for blocks between stages, in bytes. ``imports``: what workers of this run will import;
    ``libraries``: of others.
    """
    kind = options.engine_class
    if options.traits.is_cluster:
        return kind(pool_timeout=options.ray.pool_timeout)
    if getattr(kind, "__init__", None) is not LocalEngine.__init__:
        return kind()
    keep = options.keep_template or 0.0
    starting = Starting(options.worker_start, _PRELOAD, imports, libraries, keep=keep)
    if starting.forks:
        warm = min(warm, 1)  # the others are forked from what it has imported
    return kind(warm, threads, devices=machine.devices(), budget=budget, starting=starting)


def worker_extras(options: RunOptions) -> Mapping[str, Any]:
    """Return what the engine is told about each worker, whatever step it is for."""
    return (options.ray.remote_args or {}) if options.traits.is_cluster else {}


def _ray_cluster() -> ModuleType:
    try:
        cluster = import_module("headrace.annex.ray.cluster")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingLibrary(
            f"engine='ray' needs Ray, which is not installed: {install_hint('ray')}."
        ) from None
    return cluster


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
