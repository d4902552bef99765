"""Ray's ``ray.util``: ``ActorPool``."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.offered import missing
from headrace.compat.ray.util.actor_pool import ActorPool

__all__ = ["ActorPool"]


def __getattr__(name: str) -> Any:
    raise missing("ray.util", name, __all__)
