"""Ray's ``ray.experimental``: ``tqdm_ray``."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.experimental import tqdm_ray as tqdm_ray
from headrace.compat.ray.offered import missing


def __getattr__(name: str) -> Any:
    raise missing("ray.experimental", name, ["tqdm_ray"])
