"""Ray's ``ray.data.datasource.partitioning``: folders named ``key=value``, or by values alone."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.compat.ray.offered import missing
from headrace.errors import ArgumentError

__all__ = ["PartitionStyle", "Partitioning", "PathPartitionFilter"]


class PartitionStyle(str, enum.Enum):  # noqa: UP042 - as in Ray: str() gives the name
    """How folders are named."""

    HIVE = "hive"
    DIRECTORY = "dir"


class Partitioning:
    """How the folders of a reader are named; ``style`` is ``"hive"``, or ``"dir"`` with ``field_names``.

    >>> Partitioning("dir", base_dir="/data", field_names=["kind"]).values("/data/cat/1.png")
    {'kind': 'cat'}
    >>> Partitioning("hive", field_types={"year": int}).values("/data/year=2024/1.csv")
    {'year': 2024}
    """

    def __init__(
        self,
        style: Any,
        base_dir: str | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, Any] | None = None,
        filesystem: Any = None,
    ) -> None:
        self.style = PartitionStyle(style)
        self.base_dir, self.field_names, self.field_types = (
            base_dir or "",
            field_names,
            dict(field_types or {}),
        )
        if self.style is PartitionStyle.DIRECTORY and not field_names:
            raise ArgumentError(
                "Partitioning('dir') takes field_names=, one for each folder below base_dir=."
            )

    @property
    def is_plain(self) -> bool:
        """Whether it says no more than ``"hive"``, where whole numbers are numbers."""
        plain = all(type_ is int for type_ in self.field_types.values())
        return self.style is PartitionStyle.HIVE and plain and not self.base_dir

    def values(self, path: str) -> dict[str, Any]:
        """Return the values of a file's folders."""
        base = self.base_dir.removeprefix("local://")
        below = path[len(os.path.abspath(base)) :] if base and "://" not in base else path.removeprefix(base)
        folders = [part for part in below.split("/")[:-1] if part]
        if self.style is PartitionStyle.HIVE:
            pairs = [part.split("=", 1) for part in folders if "=" in part]
        else:
            names = list(self.field_names or ())
            if len(folders) < len(names):
                raise ArgumentError(
                    f"{path!r} does not lie in {len(names)} folders, one for each of {names}."
                )
            pairs = [
                list(pair)
                for pair in zip(names, folders[-len(names) :] if not base else folders, strict=False)
            ]
        return {name: self.field_types.get(name, str)(value) for name, value in pairs}


class PathPartitionFilter:
    """Says which files are read, by the values of their folders."""

    def __init__(
        self, path_partition_parser: Partitioning, filter_fn: Callable[[dict[str, Any]], bool]
    ) -> None:
        self._partitioning, self._filter = path_partition_parser, filter_fn

    @classmethod
    def of(
        cls,
        filter_fn: Callable[[dict[str, Any]], bool],
        style: Any = "hive",
        base_dir: str | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, Any] | None = None,
        filesystem: Any = None,
    ) -> PathPartitionFilter:
        """Return one by a function of the values.

        >>> PathPartitionFilter.of(lambda values: values["year"] == "2024")(["/data/year=2024/a", "/data/year=1/b"])
        ['/data/year=2024/a']
        """
        return cls(Partitioning(style, base_dir, field_names, field_types), filter_fn)

    def __call__(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if self._filter(self._partitioning.values(path))]


def __getattr__(name: str) -> Any:
    raise missing("ray.data.datasource.partitioning", name, __all__)
