"""Ray's ``ray.util.actor_pool``."""

from __future__ import annotations

from typing import Any

import millrace
from millrace.compat.ray.exceptions import as_ray_raises

__all__ = ["ActorPool"]


class ActorPool(millrace.ActorPool):
    """``millrace.ActorPool``, of actors that there are; what a call raised is a ``RayTaskError``, too."""

    def _take(self, *args: Any) -> Any:
        try:
            return super()._take(*args)
        except Exception as error:
            raised = as_ray_raises(error)
            raise raised from raised.__cause__
