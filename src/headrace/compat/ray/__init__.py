"""Ray's names for Headrace's executor and datasets: change ``import ray`` to ``from headrace.compat import ray``.

Only names: tasks and actors run on a ``headrace.Executor``, ``ray.data`` are the verbs of
``headrace.Dataset``. Other names raise ``NotOffered``; ``docs/coming-from-ray.md`` says what to do instead.

>>> from headrace.compat import ray
>>> @ray.remote
... def double(x):
...     return 2 * x
>>> ray.get([double.remote(n) for n in range(3)])
[0, 2, 4]
>>> ray.shutdown()
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import cloudpickle as cloudpickle

from headrace.compat.ray.calls import (
    DynamicObjectRefGenerator,
    cancel,
    get,
    get_actor,
    kill,
    method,
    put,
    wait,
)
from headrace.compat.ray.offered import missing, named_modules
from headrace.compat.ray.remote import ObjectRef, ObjectRefGenerator, remote
from headrace.compat.ray.session import (
    LoggingConfig,
    available_resources,
    cluster_resources,
    get_gpu_ids,
    get_runtime_context,
    init,
    is_initialized,
    nodes,
    shutdown,
)

__version__ = "2.60.0"  # the version of Ray whose names these are
__commit__ = "headrace"

__all__ = [
    "DynamicObjectRefGenerator", "LoggingConfig", "ObjectRef", "ObjectRefGenerator", "available_resources",
    "cancel", "cluster_resources", "get", "get_actor", "get_gpu_ids", "get_runtime_context", "init",
    "is_initialized", "kill", "method", "nodes", "put", "remote", "shutdown", "wait",
]  # fmt: skip

# Ray's modules by ours, where the names differ.
_ROOMS = {
    "": "types _raylet",
    "calls": "actor _private _common",
    "remote": "remote_function",
    "predictors": "air air.checkpoint train train.batch_predictor train.hf_transformers train.huggingface "
    "train.lightgbm train.predictor train.sklearn train.tensorflow train.torch train.xgboost data.preprocessor",
    "around": "runtime_env",
    "counted": "experimental experimental.tqdm_ray util.metrics",
    "pools": "_private.test_utils _common.test_utils _common.synchronization_actors "
    "util.actor_pool util.joblib util.multiprocessing util.queue",
    "placement": "util.placement_group util.scheduling_strategies",
    "util": "util.state",
    "exceptions": "data.exceptions",
    "data": "data.dataset data.iterator data._internal data._internal.execution",
    "data.aggregate": "data.grouped_data",
    "data.arguments": "data.collate_fn",
    "data.block": "data.datatype data.extensions data.extensions.tensor_extension data._internal.util "
    "data._internal.execution.interfaces data._internal.delegating_block_builder",
    "data.context": "data.checkpoint",
    "data.datasource": "data.datasource.datasource data.datasource.datasink data.datasource.file_based_datasource "
    "data.datasource.file_datasink data.datasource.filename_provider data.datasource.partitioning",
    "data.preprocessors": "data.preprocessors.scaler data.preprocessors.encoder data.preprocessors.imputer "
    "data.preprocessors.chain data.preprocessors.concatenator data.preprocessors.discretizer "
    "data.preprocessors.tokenizer data.preprocessors.vectorizer",
}
named_modules(__name__, _ROOMS)
sys.modules[f"{__name__}.cloudpickle"] = cloudpickle
_MODULES = ("data", "exceptions", "util")  # ours have Ray's names


def __getattr__(name: str) -> Any:
    """Import a part when it is first used, as Ray does; raise for what is not offered."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise missing("ray", name, [*__all__, *_MODULES, "air", "train"])
