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
from headrace.compat.ray.context import get_runtime_context
from headrace.compat.ray.offered import missing
from headrace.compat.ray.remote import ObjectRef, ObjectRefGenerator, remote
from headrace.compat.ray.session import (
    LoggingConfig,
    available_resources,
    cluster_resources,
    get_gpu_ids,
    init,
    is_initialized,
    nodes,
    shutdown,
)

__version__ = "2.60.0"  # the version of Ray whose names these are
__commit__ = "headrace"

__all__ = [
    "DynamicObjectRefGenerator",
    "LoggingConfig",
    "ObjectRef",
    "ObjectRefGenerator",
    "available_resources",
    "cancel",
    "cluster_resources",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "wait",
]

_MODULES = (
    "actor",
    "air",
    "cloudpickle",
    "dag",
    "data",
    "exceptions",
    "experimental",
    "runtime_env",
    "train",
    "util",
)


sys.modules.update(
    {
        f"{__name__}.types": sys.modules[__name__],
        f"{__name__}.remote_function": sys.modules[remote.__module__],
        f"{__name__}._raylet": sys.modules[__name__],
    }
)


def __getattr__(name: str) -> Any:
    """Import a part when it is first used, as Ray does; raise for what is not offered."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise missing("ray", name, [*__all__, *_MODULES])
