"""The engines that there are: what each has, how it is opened, and which jobs this process begins itself."""

from __future__ import annotations

import io
import pickle
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import ModuleType
from typing import Any

from headrace.core import failpoints
from headrace.core.door import install_hint
from headrace.core.engine_ports import Capacity, Engine
from headrace.core.files.storage import storage_at
from headrace.engines.local import machine
from headrace.engines.local.pool import LocalEngine
from headrace.engines.local.spawner import Starting
from headrace.errors import MissingLibrary
from headrace.options import RunOptions
from headrace.plan import compile as compiler
from headrace.plan.logical import Plan
from headrace.plan.physical import Stage
from headrace.plan.steps.base import UNDECLARED, Step, innermost, is_of_headrace


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
    if options.traits.is_cluster:
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


# ---------------------------------------------------------------- jobs that this process begins itself

# Before it starts a worker: see ``engines.driver_first``.
# What could end or change this process is left to workers: the user's functions, and whatever a worker is ended for.

MOST_BYTES = 16 << 20
MOST_FILES = 64
_SOURCES = ("parquet", "csv", "json")
_LIBRARIES = {"numpy", "scipy", "sklearn"}
_HARMLESS = {"builtins", "collections", "functools", "headrace.predictors.sklearn", "operator"}


def begins_here(plan: Plan, options: RunOptions, stages: tuple[Stage, ...]) -> bool:
    """Say whether this process begins a job that writes: its input is small, and only scikit-learn's code predicts.

    ``stages`` are those of the plan. Lists the input's files if all else allows it.
    """
    return _is_asked_nothing(options) and len(stages) == 1 and _is_known(plan) and _is_small(plan)


def _is_asked_nothing(options: RunOptions) -> bool:
    """Say whether the options leave it to us where the work is done, and bound nothing that only a worker can be."""
    return (
        options.engine == "local"
        and options.workers is None
        and options.worker_start == "fork"
        and options.batch_timeout is None
        and options.memory_limit is None
        and bool(options.commit_every)  # an attempt can end before its shard does
        and not failpoints.active()
    )


def _is_known(plan: Plan) -> bool:
    """Say whether steps and models are code of ours and of scikit-learn, and would do the same in a worker."""
    models = [each.function for step in plan.steps for each in step.functions()]
    return (
        bool(models)
        and all(map(_is_plain, plan.steps))
        and not compiler.limits_of(plan.steps)
        and "sklearn" in sys.modules
        and all(model.predictor is not None for model in models)
        and uses_only_known([(model.predictor, model.args, model.kwargs) for model in models])
        and _has_usual_settings()
    )


def _is_plain(step: Step) -> bool:
    ours = all(type(metric).__module__.startswith("headrace.") for _, metric in step.metrics)
    return (
        ours and is_of_headrace(type(innermost(step))) and all(needs == UNDECLARED for needs in step.needs())
    )


def _is_small(plan: Plan) -> bool:
    rooms = type(plan.source).__module__.split(".")
    if rooms[:2] != ["headrace", "sources"] or rooms[2] not in _SOURCES:
        return False
    files = plan.source.files()
    few = len(files) <= MOST_FILES and sum(size for _, size, _ in files) <= MOST_BYTES
    return few and not any(storage_at(path).latency for path, _, _ in files)


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


class _Names(pickle.Pickler):
    """Notes the modules of all classes and functions that a value is made of."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), 5, buffer_callback=lambda buffer: False)
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        named = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
        self.modules.add(str(getattr(value if named else type(value), "__module__", None)))
        return NotImplemented


def uses_only_known(value: Any) -> bool:
    """Say whether a value is made of classes and functions of scikit-learn, scipy, numpy and Python only.

    >>> uses_only_known({"mean": 1.5}), uses_only_known([uses_only_known])
    (True, False)
    """
    names = _Names()
    try:
        names.dump(value)
    except Exception:  # no worker could get it; and it says so better
        return False
    return all(name.partition(".")[0] in _LIBRARIES or name in _HARMLESS for name in names.modules)


def _has_usual_settings() -> bool:
    """Say whether scikit-learn, numpy and warnings behave here as they do in a worker."""
    if any(action == "error" for action, *_ in warnings.filters):
        return False
    with ThreadPoolExecutor(1) as thread:  # what the program has set, it has set for its own thread
        return bool(thread.submit(_settings).result() == _settings())


def _settings() -> tuple[Any, Any]:
    import numpy as np
    import sklearn

    return sklearn.get_config(), np.geterr()
