"""Ray's ``ray.data.datasource.partitioning``: folders named ``key=value``."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from headrace.compat.ray.offered import missing, not_offered

_BY_PATH = "choose by the path: folder/year=2024/**, or filter(expr=...) by the column"


class PartitionStyle(str, enum.Enum):  # noqa: UP042 - as in Ray: str() gives the name
    """How folders are named."""

    HIVE = "hive"
    DIRECTORY = "dir"


def Partitioning(
    style: Any,
    base_dir: str | None = None,
    field_names: Any = None,
    field_types: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> str:
    """Return what ``read_parquet(partitioning=)`` takes: ``"hive"``. Values that are whole numbers are ``int64``.

    >>> Partitioning("hive", field_types={"year": int})
    'hive'
    """
    if PartitionStyle(style) is not PartitionStyle.HIVE or field_names or base_dir:
        raise not_offered(
            "ray.data.datasource.Partitioning",
            why="folders are read as key=value. For folders of values, take include_paths=True and split the path",
        )
    for name, type_ in (field_types or {}).items():
        if type_ is not int:
            raise not_offered(
                f"ray.data.datasource.Partitioning(field_types={{{name!r}: {getattr(type_, '__name__', type_)}}})",
                why="values that are whole numbers are int64, others text. with_column(name, col(name).cast(…)) "
                "makes another type of them",
            )
    return "hive"


def __getattr__(name: str) -> Any:
    why = _BY_PATH if "Filter" in name else ""
    raise missing("ray.data.datasource.partitioning", name, ["Partitioning", "PartitionStyle"], why)
