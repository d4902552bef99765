"""The one executor that a program's ``ray`` names use; made when it is first needed, as in Ray."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

import headrace
from headrace.annex.tasks import Executor
from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.compat.ray.offered import OPTIONS, REASONS, not_offered
from headrace.errors import EngineError

_IGNORED = frozenset(
    {
        "configure_logging", "dashboard_host", "dashboard_port", "include_dashboard", "log_to_driver",
        "logging_config", "logging_format", "logging_level", "namespace", "object_store_memory", "_temp_dir",
        "_system_config",
    }
)  # fmt: skip


class _Session:
    executor: Executor | None = None
    lock = threading.Lock()


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    _memory: int | None = None,
    ignore_reinit_error: bool = False,
    **others: Any,
) -> Executor:
    """Begin: as ``headrace.connect(num_cpus=, num_gpus=, memory_limit=_memory)``; may be left out.

    Arguments about logging, the dashboard and the object store has no effect. ``address``, ``runtime_env`` and
    ``resources`` are not offered.
    """
    if TaskHost.current is not None:
        return session()
    if address not in (None, "local"):
        raise not_offered("ray.init(address=…)", why=REASONS["address"])
    for name in others:
        if name not in _IGNORED:
            known = ("num_cpus", "num_gpus", "_memory", "ignore_reinit_error", *_IGNORED)
            raise not_offered(
                f"ray.init({name}=…)", known, why=OPTIONS[name].reason if name in OPTIONS else ""
            )
    with _Session.lock:
        if _Session.executor is not None:
            if ignore_reinit_error:
                return _Session.executor
            raise EngineError("ray.init() was called before; ray.shutdown() ends what it began.")
        return _begin(num_cpus, num_gpus, _memory)


def session() -> Executor:
    """Return the executor, made if there is none; in a task, the one that runs it."""
    if TaskHost.current is not None:
        return headrace.connect()
    with _Session.lock:
        return _Session.executor or _begin(None, None, None)


def is_initialized() -> bool:
    """Return whether there is an executor."""
    return TaskHost.current is not None or _Session.executor is not None


def shutdown(_exiting_interpreter: bool = False) -> None:
    """End all workers, at once; in a task, nothing."""
    with _Session.lock:
        executor, _Session.executor = _Session.executor, None
    atexit.unregister(shutdown)
    if executor is not None:
        executor._core.shutdown(cancel=True, kill=True)
        executor._core.join()


def cluster_resources() -> dict[str, float]:
    """Return all resources: ``CPU``, ``GPU``, and ``memory`` in bytes."""
    named = _named(session().limits)
    # As Ray: what there is none of is left out.
    return {name: number for name, number in named.items() if number}


def available_resources() -> dict[str, float]:
    """Return the part of it that is free now."""
    return _named(session().available)


def get_gpu_ids() -> list[str]:
    """Return the devices that this process was given, by the names that CUDA knows."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def _begin(num_cpus: float | None, num_gpus: int | None, memory: int | None) -> Executor:
    _Session.executor = headrace.connect(num_cpus=num_cpus, num_gpus=num_gpus, memory_limit=memory)
    atexit.register(shutdown)  # as in Ray, what is under way at the end of the program is not waited for
    return _Session.executor


def _named(needs: Any) -> dict[str, float]:
    named = {"CPU": float(needs.num_cpus), "memory": float(needs.memory)}
    return named | ({"GPU": float(needs.num_gpus)} if needs.num_gpus else {})
