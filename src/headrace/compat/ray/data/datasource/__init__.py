"""Ray's ``ray.data.datasource``: how folders are named; all else there is of Ray's own readers and writers."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.data.datasource.partitioning import Partitioning, PartitionStyle
from headrace.compat.ray.offered import missing

__all__ = ["PartitionStyle", "Partitioning"]

_OWN = (
    "Ray's datasources and datasinks cut and commit by other rules: Dataset.from_source and write_to take what fills "
    "the ports headrace.core.ports.Source and Sink"
)


def __getattr__(name: str) -> Any:
    raise missing("ray.data.datasource", name, __all__, _OWN)
