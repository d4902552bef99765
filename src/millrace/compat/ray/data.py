"""Ray's ``ray.data``: the verbs of ``millrace.Dataset``."""

from __future__ import annotations

import millrace
from millrace.compat.ray.offered import names_of_millrace

_CLASSES = ("ActorPoolStrategy", "Dataset", "TaskPoolStrategy")

__all__ = sorted(
    name for name in millrace.__all__ if name in _CLASSES or name.startswith(("read_", "from_", "range"))
)

__getattr__ = names_of_millrace("ray.data", __all__)
