"""Rates that hold for all machines of a cluster: one actor says whose turn it is, by its own clock."""

from __future__ import annotations

import secrets
import time
from typing import Any

import ray

UNUSED = 0.5
"""For so many seconds, a rate that nobody has used is not lost."""


class Queue:
    """The actor: when each rate is free again."""

    def __init__(self) -> None:
        self._free_at = dict[str, float]()

    def turn(self, name: str, seconds: float) -> float:
        """See ``Rates.turn``."""
        now = time.monotonic()
        free_at = max(self._free_at.get(name, now), now - UNUSED)
        if free_at > now:
            return free_at - now
        self._free_at[name] = free_at + seconds
        return 0.0


class RayRates:
    """Rates of models on all nodes. The actor is there from when it is first sent to a worker."""

    def __init__(self, name: str = "") -> None:
        self._name = name or f"headrace-rates-{secrets.token_hex(8)}"
        self._queue: Any = None

    def __reduce__(self) -> tuple[type[RayRates], tuple[str]]:
        if self._queue is None:
            actor: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Queue)
            self._queue = actor.options(name=self._name).remote()
        return RayRates, (self._name,)

    def turn(self, name: str, seconds: float) -> float:
        """See ``Rates.turn``."""
        if self._queue is None:
            self._queue = ray.get_actor(self._name)
        found: float = ray.get(self._queue.turn.remote(name, seconds))
        return found
