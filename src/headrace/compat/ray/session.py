"""The one executor that a program's ``ray`` names use; made when it is first needed, as in Ray."""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

import headrace
from headrace.annex.tasks import Executor
from headrace.annex.tasks.executor import given_cores, opened
from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.annex.tasks.hosting.worker_core import current_call
from headrace.compat.ray.around import environment
from headrace.compat.ray.offered import REASONS, check_options, missing, not_offered
from headrace.core.terminal import warn
from headrace.engines.local import machine
from headrace.errors import ArgumentError, EngineError

_IGNORED = frozenset(
    {
        "configure_logging", "dashboard_host", "dashboard_port", "include_dashboard", "log_to_driver",
        "logging_config", "logging_format", "logging_level", "namespace", "object_store_memory", "_temp_dir",
        "_system_config", "_metrics_export_port", "_node_ip_address", "job_config", "labels", "allow_multiple",
        "_plasma_directory", "_enable_object_reconstruction", "_redis_max_memory", "local_mode",
    }
)  # fmt: skip


_HERE = f"{0:056x}"  # the name of the one machine


class LoggingConfig(dict[str, Any]):
    """Taken without effect by ``init``: Python's ``logging`` is set up by the program."""


class _Session:
    executor: Executor | None = None
    environment: Mapping[str, Any] = {}
    lock = threading.Lock()


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    _memory: int | None = None,
    ignore_reinit_error: bool = False,
    **others: Any,
) -> Executor:
    """Begin: as ``headrace.connect(num_cpus=, num_gpus=, memory_limit=_memory)``; may be left out.

    ``num_gpus`` and ``resources`` are counted, though the machine has fewer devices. ``runtime_env``: see
    ``environment``; its ``env_vars`` are set in this program, too. ``address="auto"`` means this machine. Arguments
    about logging, the dashboard and the object store have no effect.
    """
    if TaskHost.current is not None:
        return session()
    if address not in (None, "local", "auto"):
        raise not_offered("ray.init(address=…)", why=REASONS["address"])
    asked = {name: value for name, value in others.items() if name not in _IGNORED}
    check_options("ray.init", asked, ("num_cpus", "num_gpus", "resources", "runtime_env", *_IGNORED))
    chosen = environment(runtime_env)
    with _Session.lock:
        if _Session.executor is not None:
            if ignore_reinit_error:
                return _Session.executor
            raise EngineError("ray.init() was called before; ray.shutdown() ends what it began.")
        _Session.environment = chosen
        os.environ.update(_Session.environment.get("env_vars") or {})
        return _begin(num_cpus, num_gpus, _memory, resources)


def session_environment() -> dict[str, Any]:
    """Return what of ``init(runtime_env=)`` a worker has to be told with each call."""
    return {name: value for name, value in _Session.environment.items() if name != "env_vars"}


def named_resources(given: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Return ``resources=`` of a call as they are counted; those of nodes are there in any case."""
    named = {name: float(amount) for name, amount in (given or {}).items() if not name.startswith("node:")}
    for name in ("CPU", "GPU", "memory"):
        if name in named:
            raise ArgumentError(f"resources={{{name!r}: …}}: say it by num_cpus=, num_gpus= or memory=.")
    return tuple(named.items())


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


def how_many(resources: Mapping[str, float] | None) -> int | None:
    """Return how many workers of a step may run at a time that take these of ``ray.init(resources=)``; None: any."""
    named = named_resources(resources)
    if not named:
        return None
    there = cluster_resources()
    most = min(int(there.get(name, 0.0) / amount + 1e-9) for name, amount in named if amount)
    if not most:
        raise ArgumentError(
            f"resources={dict(named)!r}: ray.init(resources=…) has said that there are {there}."
        )
    return most


def without_counted_gpus(step: Any) -> Any:
    """Return a step that does not ask for GPUs that ``ray.init(num_gpus=)`` counts, and the machine lacks."""
    needs = getattr(step, "resources", None)
    if needs is None or not needs.num_gpus or _Session.executor is None:
        return step
    if len(machine.devices()) >= needs.num_gpus or _Session.executor.limits.num_gpus < needs.num_gpus:
        return step
    return dataclasses.replace(step, resources=msgspec.structs.replace(needs, num_gpus=None))


def cluster_resources() -> dict[str, float]:
    """Return all resources: ``CPU``, ``GPU``, ``memory`` and ``object_store_memory``, its other name, in bytes."""
    named = _named(session().limits)
    # As Ray: what there is none of is left out.
    return {name: number for name, number in named.items() if number}


def available_resources() -> dict[str, float]:
    """Return the part of it that is free now."""
    return _named(session().available)


def nodes() -> list[dict[str, Any]]:
    """Return the one machine, as Ray describes each of a cluster."""
    return [
        {
            "NodeID": _HERE,
            "Alive": True,
            "NodeManagerAddress": "127.0.0.1",
            "Resources": cluster_resources() | {"node:127.0.0.1": 1.0},
        }
    ]


def get_gpu_ids() -> list[str]:
    """Return the devices that this process was given, by the names that CUDA knows."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def _begin(
    num_cpus: float | None,
    num_gpus: int | None,
    memory: int | None,
    resources: Mapping[str, float] | None = None,
) -> Executor:
    devices = machine.devices()
    wanted = len(devices) if num_gpus is None else int(num_gpus)
    if wanted > len(devices):
        warn(
            f"ray.init(num_gpus={wanted}): the machine has {len(devices)}. They are counted, and nothing more."
        )
        devices += tuple(map(str, range(len(devices), wanted)))
    cores = given_cores(None, num_cpus)
    _Session.executor = opened(cores, devices[:wanted], memory, dict(named_resources(resources)))
    info = {"node_ip_address": "127.0.0.1", "address": "local", "node_id": _HERE}
    _Session.executor.__dict__.update(address_info=info, dashboard_url="")  # as what Ray returns has them
    atexit.register(shutdown)  # as in Ray, what is under way at the end of the program is not waited for
    return _Session.executor


def _named(needs: Any) -> dict[str, float]:
    named = {"CPU": float(needs.num_cpus), "memory": float(needs.memory)}
    named["object_store_memory"] = float(session().limits.memory)
    return named | ({"GPU": float(needs.num_gpus)} if needs.num_gpus else {}) | dict(needs.resources)


# Ray's ``ray.get_runtime_context``: what a task or an actor can know of itself.


class RuntimeContext:
    """What code can know of the task or actor that it runs in."""

    @property
    def current_actor(self) -> Any:
        """The handle of the actor whose method this is."""
        here = TaskHost.current
        if here is None or not here.is_actor:
            raise EngineError("current_actor: this code runs in no method of an actor.")
        return session()._core.actor_here()  # type: ignore[attr-defined]

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor whose method this is takes the place of one that died."""
        return TaskHost.current is not None and TaskHost.current.is_again

    def is_canceled(self) -> bool:
        """Say whether the call that asks was cancelled while it runs."""
        return TaskHost.current is not None and TaskHost.current.is_cancelled(current_call.get())

    def get_actor_id(self) -> str | None:
        """Return the name of the actor whose method this is; None elsewhere."""
        here = TaskHost.current
        if here is None or not here.is_actor:
            return None
        handle = session()._core.actor_here()  # type: ignore[attr-defined]
        return None if handle is None else handle._actor_id.hex()

    def get_task_id(self) -> str | None:
        """Return the name of the task; None in the program itself."""
        return f"{current_call.get():048x}" if current_call.get() >= 0 else None

    # Names of the program, of this process and of the one machine, and the devices that this process was given.
    namespace, node_id = "", _HERE
    runtime_env = property(lambda self: session_environment())
    get_job_id = staticmethod(lambda: f"{1:08x}")
    get_node_id = staticmethod(lambda: _HERE)
    get_worker_id = staticmethod(lambda: f"{os.getpid():056x}")
    get_accelerator_ids = staticmethod(lambda: {"GPU": get_gpu_ids()})
    get_assigned_resources = staticmethod(lambda: {"GPU": float(len(get_gpu_ids()))} if get_gpu_ids() else {})

    def __getattr__(self, name: str) -> Any:
        known = [each for each in dir(type(self)) if not each.startswith("_")]
        raise missing("ray.get_runtime_context()", name, known)


def get_runtime_context() -> RuntimeContext:
    """Return what this code can know of the task or actor that it runs in."""
    return RuntimeContext()
