"""Ray's ``ray.util``: ``ActorPool``."""

from __future__ import annotations

from typing import Any

from millrace.compat.ray.offered import not_offered
from millrace.compat.ray.util.actor_pool import ActorPool

__all__ = ["ActorPool"]


def __getattr__(name: str) -> Any:
    raise not_offered(f"ray.util.{name}", __all__)
