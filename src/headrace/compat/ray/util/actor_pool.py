"""Ray's ``ray.util.actor_pool``."""

from __future__ import annotations

from typing import Any

import headrace
from headrace.compat.ray.exceptions import as_ray_raises

__all__ = ["ActorPool"]


class RayActorPool(headrace.ActorPool):
    """``headrace.ActorPool``, of actors that there are; what a call raised is a ``RayTaskError``, too."""

    def _wait_for(self, *args: Any) -> Any:
        try:
            return super()._wait_for(*args)
        except Exception as error:
            raised = as_ray_raises(error)
            raise raised from raised.__cause__


ActorPool = RayActorPool  # by Ray's name
