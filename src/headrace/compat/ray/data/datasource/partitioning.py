"""Ray's ``ray.data.datasource.partitioning``: folders named ``key=value``."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from glob import has_magic
from typing import Any

from headrace.compat.ray.offered import missing, not_offered
from headrace.core.stores.addresses import is_address
from headrace.errors import ArgumentError, UnknownArgument
from headrace.sources.file_source import FileSource

_BY_PATH = "choose by the path: folder/year=2024/**, or filter(expr=...) by the column"


class PartitionStyle(str, enum.Enum):
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


# ---------------------------------------------------------------- What Ray's readers say about which files are read


def with_extensions(source: Any, extensions: Any) -> None:
    """Have a source read only files whose names end so: ``file_extensions=["jpg", "png"]``."""
    if not isinstance(source, FileSource):
        raise UnknownArgument("file_extensions= is for what reads files.")
    given = [extensions] if isinstance(extensions, str) else list(extensions)
    if not given or not all(isinstance(each, str) and each.strip(".") for each in given):
        raise ArgumentError(f"file_extensions={extensions!r}: give a list such as ['jpg', 'png'].")
    source.only_extensions(tuple(f".{each.lstrip('.').lower()}" for each in given))


def existing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a reader's arguments without the paths behind which nothing is: ``ignore_missing_paths=True``."""
    paths = args[0] if args else kwargs.get("paths")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths or ())
    found = [path for path in listed if _is_there(os.fspath(path))]
    kept = found or listed  # with none left, the reader says what is missing
    return ((kept, *args[1:]), kwargs) if args else (args, {**kwargs, "paths": kept})


def _is_there(path: str) -> bool:
    return is_address(path) or has_magic(path) or os.path.exists(path)
