"""Ray's ``ray.data.datasource``: how folders are named, and datasources and datasinks of the user's own."""

from __future__ import annotations

import sys
from typing import Any

from headrace.compat.ray.data.datasource.custom import (
    BlockBasedFileDatasink,
    Datasink,
    Datasource,
    FileBasedDatasource,
    FilenameProvider,
    ReadTask,
    RowBasedFileDatasink,
    SQLDatasink,
    SQLDatasource,
    WriteResult,
    endings,
    read_datasource,
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
    "SQLDatasink",
    "SQLDatasource",
    "WriteResult",
    "endings",
    "read_datasource",
]

_OWN = "Dataset.from_source and write_to take what fills the ports headrace.core.ports.Source and Format"


for _name in ("datasource", "datasink", "file_based_datasource", "file_datasink", "filename_provider"):
    sys.modules[f"{__name__}.{_name}"] = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    raise missing("ray.data.datasource", name, __all__, _OWN)
