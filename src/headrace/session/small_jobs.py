"""Which jobs this process begins itself, before it starts a worker: see ``engines.inline``.

What could end or change this process is left to workers: the user's functions, and whatever a worker is ended for.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.core import failpoints
from headrace.core.files.storage import storage_at
from headrace.options import RunOptions
from headrace.plan import compile as compiler
from headrace.plan.logical import Plan
from headrace.plan.physical import Stage
from headrace.plan.steps.base import UNDECLARED, Step, innermost, is_of_headrace

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
