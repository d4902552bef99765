"""Ray's ``ray.air``, as far as it predicts: ``Checkpoint``."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.air.checkpoint import Checkpoint
from headrace.compat.ray.offered import missing

__all__ = ["Checkpoint"]


def __getattr__(name: str) -> Any:
    raise missing("ray.air", name, __all__)
