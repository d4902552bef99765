"""Ray's ``ray.actor``."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace.annex.tasks import ActorHandle
from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.compat.ray.offered import missing
from headrace.errors import EngineError

__all__ = ["ActorHandle", "exit_actor"]


def exit_actor() -> NoReturn:
    """End the actor whose method calls this; calls that wait raise ``RayActorError``."""
    if TaskHost.current is None or not TaskHost.current.is_actor:
        raise EngineError("exit_actor() ends the actor whose method calls it: this is none.")
    raise SystemExit


def __getattr__(name: str) -> Any:
    if name == "ActorClass":
        from headrace.compat.ray.remote import ActorClass

        return ActorClass
    raise missing("ray.actor", name, __all__)
