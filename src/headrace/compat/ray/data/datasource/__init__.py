"""Ray's ``ray.data.datasource``: how folders are named, and datasources and datasinks of the user's own."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.data.datasource.custom import (
    BlockBasedFileDatasink,
    Datasink,
    Datasource,
    FileBasedDatasource,
    FilenameProvider,
    ReadTask,
    RowBasedFileDatasink,
    WriteResult,
)
from headrace.compat.ray.data.datasource.partitioning import (
    Partitioning,
    PartitionStyle,
    PathPartitionFilter,
)
from headrace.compat.ray.offered import missing

__all__ = [
    "BlockBasedFileDatasink",
    "Datasink",
    "Datasource",
    "FileBasedDatasource",
    "FilenameProvider",
    "PartitionStyle",
    "Partitioning",
    "PathPartitionFilter",
    "ReadTask",
    "RowBasedFileDatasink",
    "WriteResult",
]

_OWN = "Dataset.from_source and write_to take what fills the ports headrace.core.ports.Source and Format"


def __getattr__(name: str) -> Any:
    raise missing("ray.data.datasource", name, __all__, _OWN)
