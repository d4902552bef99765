"""Ray's ``ray.get_runtime_context``: what a task or an actor can know of itself."""

from __future__ import annotations

import os
from typing import Any

from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.annex.tasks.hosting.worker_core import current_call
from headrace.compat.ray.offered import missing
from headrace.compat.ray.session import session
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
        known = ["current_actor", "get_node_id", "get_task_id", "get_worker_id"]
        raise missing("ray.get_runtime_context()", name, known)


def get_runtime_context() -> RuntimeContext:
    """Return what this code can know of the task or actor that it runs in."""
    return RuntimeContext()
