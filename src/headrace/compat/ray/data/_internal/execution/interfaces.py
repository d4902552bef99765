"""Ray's names for annotations of datasinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TaskContext:
    """What a datasink is told of the task that calls it."""

    task_idx: int = 0
    op_name: str = "Write"
    kwargs: dict[str, Any] = field(default_factory=dict)
