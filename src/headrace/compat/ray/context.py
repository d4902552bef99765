"""Ray's ``ray.get_runtime_context``: what a task or an actor can know of itself."""

from __future__ import annotations

import os
from typing import Any

from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.annex.tasks.hosting.worker_core import current_call
from headrace.compat.ray.offered import missing
from headrace.compat.ray.session import get_gpu_ids, session, session_environment
from headrace.errors import EngineError


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
    def node_id(self) -> str:
        """The name of the one machine."""
        return self.get_node_id()

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor whose method this is takes the place of one that died."""
        return TaskHost.current is not None and TaskHost.current.is_again

    @property
    def namespace(self) -> str:
        """Names of actors are one namespace."""
        return ""

    def is_canceled(self) -> bool:
        """Say whether the call that asks was cancelled while it runs."""
        return TaskHost.current is not None and TaskHost.current.is_cancelled(current_call.get())

    def get_actor_id(self) -> str | None:
        """Return the name of the actor whose method this is; None elsewhere."""
        here = TaskHost.current
        return f"{os.getpid():032x}" if here is not None and here.is_actor else None

    @property
    def runtime_env(self) -> dict[str, Any]:
        """What of ``init(runtime_env=)`` holds."""
        return session_environment()

    def get_placement_group_id(self) -> None:
        """No call runs inside of a group."""

    def get(self) -> dict[str, Any]:
        """Return the names as a dict."""
        return {"node_id": self.get_node_id(), "job_id": self.get_job_id(), "worker_id": self.get_worker_id()}

    def get_job_id(self) -> str:
        """Return the name of the program."""
        return f"{1:08x}"

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the devices that this process was given."""
        return {"GPU": get_gpu_ids()}

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the devices of this process; how many cores it has is the driver's to know."""
        return {"GPU": float(len(get_gpu_ids()))} if get_gpu_ids() else {}

    def get_task_id(self) -> str | None:
        """Return the name of the task; None in the program itself."""
        return f"{current_call.get():048x}" if current_call.get() >= 0 else None

    def get_worker_id(self) -> str:
        """Return the name of the process."""
        return f"{os.getpid():056x}"

    def get_node_id(self) -> str:
        """Return the name of the one machine."""
        return f"{0:056x}"

    def __getattr__(self, name: str) -> Any:
        known = [each for each in dir(type(self)) if not each.startswith("_")]
        raise missing("ray.get_runtime_context()", name, known)


def get_runtime_context() -> RuntimeContext:
    """Return what this code can know of the task or actor that it runs in."""
    return RuntimeContext()
