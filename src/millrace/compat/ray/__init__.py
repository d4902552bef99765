"""Ray's names for Millrace's executor and datasets: change ``import ray`` to ``from millrace.compat import ray``.

No machinery, only names: tasks and actors run on a ``millrace.Executor``, ``ray.data`` are the verbs of
``millrace.Dataset``. What is not offered says so; ``docs/coming-from-ray.md`` has a page of what to do instead.

>>> from millrace.compat import ray
>>> @ray.remote
... def double(x):
...     return 2 * x
>>> ray.get([double.remote(n) for n in range(3)])
[0, 2, 4]
>>> ray.shutdown()
"""

from __future__ import annotations

import importlib
from typing import Any

from millrace.compat.ray.calls import cancel, get, kill, put, wait
from millrace.compat.ray.offered import missing
from millrace.compat.ray.references import ObjectRef
from millrace.compat.ray.remote import remote
from millrace.compat.ray.session import (
    available_resources,
    cluster_resources,
    get_gpu_ids,
    init,
    is_initialized,
    shutdown,
)

__all__ = [
    "ObjectRef",
    "available_resources",
    "cancel",
    "cluster_resources",
    "get",
    "get_gpu_ids",
    "init",
    "is_initialized",
    "kill",
    "put",
    "remote",
    "shutdown",
    "wait",
]

_MODULES = ("data", "exceptions", "train", "util")


def __getattr__(name: str) -> Any:
    """Import a part when it is first used, as Ray does; say what is not offered."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise missing("ray", name, [*__all__, *_MODULES])
