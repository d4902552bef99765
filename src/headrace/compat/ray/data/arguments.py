"""Arguments of Ray Data's verbs and readers that one machine answers in its own way; writers add to a folder."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import glob
import inspect
import itertools
import os
import random
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

import headrace
from headrace.compat.ray.around import adapted, environment, in_environment
from headrace.compat.ray.data import block, datasource, expressions
from headrace.compat.ray.data.context import DataContext
from headrace.compat.ray.offered import Kept
from headrace.compat.ray.session import how_many
from headrace.core.arguments import unframed
from headrace.core.files.storage import given as given_place
from headrace.core.files.storage import storage_at
from headrace.core.terminal import warn
from headrace.errors import ArgumentError, PlanChanged

PLACED = ("map", "map_batches", "flat_map", "filter")
WRITERS = (
    "write_parquet", "write_csv", "write_json", "write_images", "write_numpy", "write_tfrecords", "write_webdataset",
)  # fmt: skip
ITERATORS = ("iter_rows", "iter_batches", "iter_torch_batches")

# Where its workers are, and how often a call is made again, is the engine's to say.
_OF_WORKERS = (
    "accelerator_type", "max_calls", "max_retries", "max_task_retries", "ray_remote_args_fn", "scheduling_strategy",
)  # fmt: skip
_NEEDS = ("num_cpus", "num_gpus", "memory", "resources", "runtime_env")
_OF_FILES = ("row_group_size", "arrow_parquet_args", "ray_remote_args", "try_create_dir")
_AHEAD = ("prefetch_batches", "prefetch_blocks", "prefetch_rows")
_COMPUTE = {"tasks": headrace.TaskPoolStrategy, "actors": headrace.ActorPoolStrategy}


def placed(verb: str) -> Callable[..., Any]:
    """Return a verb that takes what Ray says of its workers, as far as one machine can obey."""
    plain = getattr(headrace.Dataset, verb)

    @functools.wraps(plain)
    def step(self: Any, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        remote = dict(kwargs.pop("ray_remote_args", None) or {})
        kwargs.update(
            {name: remote.pop(name) for name in _NEEDS if name in remote and kwargs.get(name) is None}
        )
        again = kwargs.pop("retry_exceptions", None) or remote.pop("retry_exceptions", None)
        if again:
            times = kwargs.get("max_retries", remote.get("max_retries", 3))
            self = self.with_options(retry_on=Exception if again is True else tuple(again), max_retries=times)
        for name in _OF_WORKERS:
            kwargs.pop(name, None)
        if isinstance(kwargs.get("compute"), str):
            kwargs["compute"] = _COMPUTE.get(kwargs["compute"], ArgumentError)()
        most = how_many(kwargs.pop("resources", None))
        if most is not None and kwargs.get("compute") is None:
            asked: Any = kwargs.get("concurrency") or most
            several = isinstance(asked, tuple)
            kwargs["concurrency"] = tuple(min(each, most) for each in asked) if several else min(asked, most)
        given = environment(kwargs.pop("runtime_env", None))
        if given and fn is not None:
            fn = adapted(fn, given) if isinstance(fn, type) else in_environment(fn, given)
        if verb == "map_batches" and kwargs.get("batch_size") is None and self._block_rows:
            kwargs["batch_size"] = self._block_rows
        if isinstance(kwargs.get("expr"), expressions.Computed):
            chosen = expressions.Chosen(kwargs.pop("expr"))
            return headrace.Dataset.map_batches(self, chosen, *args, batch_format="pyarrow", **kwargs)
        called = fn.__call__ if isinstance(fn, type) else fn
        is_async = inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
        if is_async and verb != "map_batches":
            rows = _rows_at_a_time(fn, verb)
            return headrace.Dataset.map_batches(self, rows, *args, batch_format="pyarrow", **kwargs)
        return plain(self, *([] if fn is None else [fn]), *args, **kwargs)

    return unframed(step)


def _rows_at_a_time(fn: Any, verb: str) -> Any:
    """Return an async function of rows as one of batches, which awaits all rows of a batch together."""

    async def answered(call: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
        if verb == "flat_map" and inspect.isasyncgenfunction(call):
            return [each async for each in call(row)]
        found = await call(row)
        if verb == "filter":
            return [row] if found else []
        return list(found) if verb == "flat_map" else [found]

    async def batch_of(call: Any, batch: Any) -> Any:
        rows = block.BlockAccessor.for_block(batch).iter_rows()
        builder = block.DelegatingBlockBuilder()
        for made in await asyncio.gather(*(answered(call, row) for row in rows)):
            for row in made:
                builder.add(row)
        return builder.build()

    if not isinstance(fn, type):
        rows = functools.partial(batch_of, fn)
        functools.update_wrapper(rows, fn)
        return rows

    async def called(self: Any, batch: Any) -> Any:
        return await batch_of(functools.partial(fn.__call__, self), batch)

    return type(fn.__name__, (fn,), {"__call__": called, "__module__": fn.__module__})


class NumpyBatchCollateFn:
    """Subclass it for ``iter_torch_batches(collate_fn=)``: ``__call__`` gets a dict of arrays."""

    batch_format: Any = "numpy"


class ArrowBatchCollateFn(NumpyBatchCollateFn):
    """Whose ``__call__`` gets a table of Arrow."""

    batch_format = "pyarrow"


class PandasBatchCollateFn(NumpyBatchCollateFn):
    """Whose ``__call__`` gets a DataFrame."""

    batch_format = "pandas"


def torch_pairs(
    dataset: Any,
    label: str | None,
    features: Any,
    dtypes: tuple[Any, Any],
    unsqueeze: tuple[bool, bool],
    **how: Any,
) -> Any:
    """Return what iterates over ``(features, label)``: columns as tensors (n, 1, …), side by side."""
    import torch

    def tensor(batch: Any, names: Any, dtype: Any, upright: bool) -> Any:
        if isinstance(names, Mapping):
            by_key = dtype if isinstance(dtype, Mapping) else dict.fromkeys(names, dtype)
            return {key: tensor(batch, each, by_key.get(key), upright) for key, each in names.items()}
        if names and not isinstance(names[0], str):
            kinds = dtype if isinstance(dtype, list) else [dtype] * len(names)
            return [tensor(batch, each, kind, upright) for each, kind in zip(names, kinds, strict=True)]
        parts = [batch[name] if dtype is None else batch[name].to(dtype) for name in names]
        parts = [part.unsqueeze(1) if upright or len(parts) > 1 else part for part in parts]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    class Pairs(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            for batch in dataset.iter_torch_batches(**how):
                chosen = features if features is not None else [name for name in batch if name != label]
                labels = None if label is None else tensor(batch, [label], dtypes[1], unsqueeze[1])
                yield tensor(batch, chosen, dtypes[0], unsqueeze[0]), labels

    return Pairs()


def iterating(verb: str) -> Callable[..., Any]:
    """Return a verb that iterates: how far it reads ahead is the engine's to say."""
    plain = getattr(headrace.Dataset, verb)

    @functools.wraps(plain)
    def iterate(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in _AHEAD:
            kwargs.pop(name, None)
        if verb == "iter_batches" and kwargs.get("batch_size", 0) is None and self._block_rows:
            kwargs["batch_size"] = self._block_rows
        collate = kwargs.pop("_collate_fn", None)
        if isinstance(kwargs.get("collate_fn"), NumpyBatchCollateFn):
            collate = kwargs.pop("collate_fn")
            return map(collate, self.iter_batches(*args, batch_format=collate.batch_format, **kwargs))
        found = plain(self, *args, **kwargs)
        return found if collate is None else map(collate, found)

    return unframed(iterate)


def adding(verb: str) -> Callable[..., Any]:
    """Return a writer that adds: what another dataset wrote stays, and the rows go into a folder beside it.

    The first of ``more-1``, ``more-2``, … that is free, or that this dataset wrote before, so that a run that was
    killed goes on, and one that had ended does nothing.
    """
    plain = getattr(headrace.Dataset, verb)

    @functools.wraps(plain)
    def write(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = _of_writer(verb, kwargs)
        folder, mode = os.fspath(path).removeprefix("local://").rstrip("/"), kwargs.get("mode")
        if "://" in folder or (mode is not None and getattr(mode, "value", mode) != "append"):
            result = plain(self, path, *args, **kwargs)
            if getattr(mode, "value", mode) == "overwrite":
                for added in glob.glob(f"{glob.escape(folder)}/more-*/_headrace"):
                    shutil.rmtree(os.path.dirname(added))
            return result
        kwargs.pop("mode", None)
        for number in itertools.count():
            try:
                return plain(self, f"{folder}/more-{number}" if number else path, *args, **kwargs)
            except PlanChanged:
                continue

    return unframed(write)


def _of_writer(verb: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a writer's arguments as Headrace knows them."""
    if kwargs.pop("filename_provider", None) is not None:
        warn(
            f"{verb}(filename_provider=…): files are named by shard and run, which a killed run is known by."
        )
    for name in _OF_FILES:
        kwargs.pop(name, None)
    if verb == "write_json" and (kwargs.pop("orient", "records"), kwargs.pop("lines", True)) != (
        "records",
        True,
    ):
        raise ArgumentError("write_json writes an object on each line: orient='records', lines=True.")
    made = {name: _called(kwargs.pop(name, None)) for name in ("arrow_parquet_args_fn", "arrow_csv_args_fn")}
    options = made["arrow_csv_args_fn"].get("write_options")
    if options is not None:
        kwargs.update(delimiter=options.delimiter, header=options.include_header)
    for name in ("compression", "compression_level"):
        if name in made["arrow_parquet_args_fn"]:
            kwargs[name] = made["arrow_parquet_args_fn"][name]
    return kwargs


def _called(function: Any) -> Mapping[str, Any]:
    return {} if function is None else function()


def write_sql(self: Any, sql: str, connection_factory: Any = None, **options: Any) -> Any:
    """Write rows by a statement: ``write_sql("INSERT INTO t VALUES(?)", connect)``; else as Headrace's own.

    The statement is carried out for all rows of a batch in a transaction. Rows may come twice if a run is killed:
    ``write_sql(table, uri=…)`` writes each once.
    """
    if not callable(connection_factory):
        return headrace.Dataset.write_sql(self, sql, connection_factory, **options)
    return self.write_datasink(datasource.SQLDatasink(sql, connection_factory))


# ---------------------------------------------------------------- readers

_OF_READERS = ("ray_remote_args", "scheduling_strategy", "resources", "arrow_csv_args")  # one machine reads


_OF_FOLDERS = (
    "read_parquet",
    "read_csv",
    "read_json",
)  # folders are columns, of text unless it is said otherwise


class FileShuffleConfig(Kept, seed=None):
    """Has files read in an order of chance, the same one for the same ``seed`` and in each run."""


def reading(found: Any, kind: Callable[..., type]) -> Any:
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
        for each in _OF_READERS:
            kwargs.pop(each, None)
        if name == "read_text":
            kwargs.setdefault("drop_empty_lines", True)
        which = {
            each: kwargs.pop(each, None) for each in ("partition_filter", "shuffle", "ignore_missing_paths")
        }
        if any(which.values()):
            paths, args = (args[0], args[1:]) if args else (kwargs.pop("paths"), args)
            args = (_chosen(paths, **which), *args)
        partitioning = kwargs.pop("partitioning", "text" if name in _OF_FOLDERS else None)
        folders = isinstance(partitioning, datasource.Partitioning)
        if folders and partitioning.is_plain and name in _OF_FOLDERS:
            partitioning, folders = "hive" if partitioning.field_types else "text", False
        if name in _OF_FOLDERS:
            kwargs["partitioning"] = None if folders else partitioning
        if folders:
            keeps_path, kwargs["include_paths"] = kwargs.get("include_paths", False), True
        extensions = kwargs.pop("file_extensions", None)
        made = found(*args, **kwargs)
        if extensions is not None:
            made._plan.source.only_extensions(datasource.endings(extensions))
        if folders:
            made = made.map_batches(_FolderColumns(partitioning, keeps_path), batch_format="pyarrow")
        blocks = max(0, kwargs.get("override_num_blocks") or kwargs.get("parallelism") or 0)
        plan = in_blocks(made._plan, blocks) if name.startswith("from_") else made._plan
        found_rows = kind(name)(plan, made._options.updated(DataContext.get_current().run_options()))
        found_rows._blocks = blocks
        return found_rows

    return unframed(reader)


def in_blocks(plan: Any, blocks: int, rows: int | None = None) -> Any:
    """Return a plan that reads a table in memory, in so many blocks, or in those of ``rows`` rows; 0: as it is."""
    if not (blocks or rows) or plan.steps:
        return plan
    return dataclasses.replace(plan, source=plan.source.in_chunks(blocks, rows))


def _chosen(paths: Any, partition_filter: Any, shuffle: Any, ignore_missing_paths: Any) -> list[Any]:
    """Return the paths behind which something is; if they are filtered or shuffled, file by file."""
    if shuffle not in (None, "files") and not isinstance(shuffle, FileShuffleConfig):
        raise ArgumentError(f"shuffle={shuffle!r}: it is 'files', or a FileShuffleConfig(seed=…).")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if ignore_missing_paths:  # with none left, the reader says what is missing
        listed = [path for path in listed if storage_at(os.fspath(path)).may_match()] or listed
    if partition_filter is None and shuffle is None:
        return listed
    places = [given_place(os.fspath(path), "read") for path in listed]
    files = sorted(str(file.path) for place in places for file in place.expanded(None))
    files = files if partition_filter is None else partition_filter(files)
    if shuffle is not None:
        random.Random(getattr(shuffle, "seed", None) or 0).shuffle(files)
    return files


class _FolderColumns:
    """Adds the values of folders to the rows of a batch, by the column ``path``."""

    def __init__(self, partitioning: Any, keeps_path: bool) -> None:
        self._partitioning, self._keeps_path, self.__name__ = partitioning, keeps_path, "folders"

    def __call__(self, batch: Any) -> Any:
        rows = [self._partitioning.values(path) for path in batch.column("path").to_pylist()]
        table = pa.table(batch) if not isinstance(batch, pa.Table) else batch
        table = table if self._keeps_path else table.drop_columns(["path"])
        for name in rows[0] if rows else ():
            table = table.append_column(name, pa.array([row[name] for row in rows]))
        return table
