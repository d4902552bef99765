"""What the workers of a step need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Remote(msgspec.Struct, frozen=True):
    """What a cluster is told about each worker of a step, in its own words."""

    args: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(frozenset(self.args))


class Resources(msgspec.Struct, frozen=True):
    """What one worker of a step needs, and how many workers there may be.

    ``num_cpus`` is in cores, ``num_gpus`` in devices, ``memory`` in bytes; ``workers`` is ``(min, max)`` or
    None for as many as the machine has room for. ``remote`` is for a cluster.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    workers: tuple[int, int] | None = None
    remote: Remote | None = None


UNDECLARED = Resources()
"""What a step needs that says nothing."""
