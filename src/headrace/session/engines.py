"""The engines that there are: what each has, and how it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from headrace.core.engine_ports import Capacity, Engine
from headrace.core.install import install_hint
from headrace.engines.local import machine
from headrace.engines.local.engine import LocalEngine
from headrace.engines.local.spawner import Starting
from headrace.errors import MissingLibrary
from headrace.options import RunOptions


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
        from headrace.engines.ray import cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingLibrary(
            f"engine='ray' needs Ray, which is not installed: {install_hint('ray')}."
        ) from None
    return cluster
