"""Readers of Headrace as Ray's: they take Ray's arguments, and make datasets of ``ray.data``."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from typing import Any

from headrace.compat.ray.data import datasource
from headrace.compat.ray.data.context import DataContext
from headrace.core.arguments import unframed
from headrace.core.files.storage import given, storage_at
from headrace.errors import ArgumentError

_WITHOUT_EFFECT = (
    "ray_remote_args",
    "scheduling_strategy",
    "resources",
    "arrow_csv_args",
)  # one machine reads
_WITH_FOLDERS = ("read_parquet", "read_csv", "read_json")


class FileShuffleConfig:
    """Has files read in an order of chance, the same one for the same ``seed`` and in each run."""

    def __init__(self, seed: int | None = None, **_: Any) -> None:
        self.seed = seed


def adapted(found: Any, kind: Callable[..., type]) -> Any:
    """Return a reader as one that makes datasets of the class ``kind(name)``."""

    @functools.wraps(found)
    def reader(*args: Any, **kwargs: Any) -> Any:
        name = found.__name__
        if name == "read_sql" and (callable(kwargs.get("connection_factory")) or callable((*args, 0, 0)[1])):
            query, factory, *_ = (
                *args,
                *(kwargs[each] for each in ("sql", "connection_factory") if each in kwargs),
            )
            made = datasource.SQLDatasource(query, factory)._dataset(1)
            return kind(name)(made._plan, made._options)
        for each in _WITHOUT_EFFECT:
            kwargs.pop(each, None)
        if name == "read_text":
            kwargs.setdefault("drop_empty_lines", True)
        chosen, shuffle = kwargs.pop("partition_filter", None), kwargs.pop("shuffle", None)
        if chosen is not None or shuffle is not None:
            args, kwargs = _listed(args, kwargs, chosen, shuffle)
        partitioning = kwargs.pop("partitioning", None)
        folders = isinstance(partitioning, datasource.Partitioning)
        if folders and partitioning.is_plain and name in _WITH_FOLDERS:
            partitioning, folders = "hive", False
        if folders:
            keeps_path, kwargs["include_paths"] = kwargs.get("include_paths", False), True
        elif partitioning is not None:
            kwargs["partitioning"] = partitioning
        extensions = kwargs.pop("file_extensions", None)
        if kwargs.pop("ignore_missing_paths", False):
            args, kwargs = _existing(args, kwargs)
        made = found(*args, **kwargs)
        if extensions is not None:
            made._plan.source.only_extensions(datasource.endings(extensions))
        if folders:
            made = made.map_batches(_FolderColumns(partitioning, keeps_path), batch_format="pyarrow")
        return kind(name)(made._plan, made._options.updated(DataContext.get_current().run_options()))

    return unframed(reader)


def _existing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a reader's arguments without the paths behind which nothing is: ``ignore_missing_paths=True``."""
    paths = args[0] if args else kwargs.get("paths")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths or ())
    found = [path for path in listed if storage_at(os.fspath(path)).may_match()]
    kept = found or listed  # with none left, the reader says what is missing
    return ((kept, *args[1:]), kwargs) if args else (args, {**kwargs, "paths": kept})


def _listed(args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Any, shuffle: Any) -> tuple[Any, Any]:
    """Return a reader's arguments with its files one by one: those that are ``chosen``, and shuffled."""
    if shuffle not in (None, "files") and not isinstance(shuffle, FileShuffleConfig):
        raise ArgumentError(f"shuffle={shuffle!r}: it is 'files', or a FileShuffleConfig(seed=…).")
    paths = args[0] if args else kwargs.pop("paths")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    places = [given(os.fspath(path), "read") for path in listed]
    files = [str(file.path) for place in places for file in place.expanded(None)]
    files = sorted(files) if chosen is None else chosen(sorted(files))
    if shuffle is not None:
        random.Random(getattr(shuffle, "seed", None) or 0).shuffle(files)
    return (files, *args[1:]), kwargs


class _FolderColumns:
    """Adds the values of folders to the rows of a batch, by the column ``path``."""

    def __init__(self, partitioning: Any, keeps_path: bool) -> None:
        self._partitioning, self._keeps_path, self.__name__ = partitioning, keeps_path, "folders"

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        rows = [self._partitioning.values(path) for path in batch.column("path").to_pylist()]
        table = pa.table(batch) if not isinstance(batch, pa.Table) else batch
        table = table if self._keeps_path else table.drop_columns(["path"])
        for name in rows[0] if rows else ():
            table = table.append_column(name, pa.array([row[name] for row in rows]))
        return table
