"""Ray's ``ray.data.datasource``: how folders are named, and datasources and datasinks of the user's own.

A datasource becomes a small dataset of its tasks or files, and a step that reads each. A datasink of files becomes a
``Format``, so its files are committed, and a killed run goes on, as for all formats. Another datasink is called with
the rows, and whether it may be called twice with the same ones after a crash is its own affair, as in Ray.
"""

from __future__ import annotations

import contextlib
import enum
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

import headrace
from headrace.compat.ray.data.block import BlockAccessor, BlockMetadata, TaskContext
from headrace.compat.ray.offered import missing, not_offered
from headrace.core.target_ports import Encoder, Format
from headrace.errors import ArgumentError


class ReadTask:
    """A function that reads a part of a datasource: it returns blocks."""

    def __init__(
        self, read_fn: Callable[[], Iterable[Any]], metadata: BlockMetadata, *_: Any, **__: Any
    ) -> None:
        self._read_fn, self.metadata = read_fn, metadata

    @property
    def read_fn(self) -> Callable[[], Iterable[Any]]:
        """The function."""
        return self._read_fn

    def __call__(self) -> Iterable[Any]:
        return self._read_fn()


class Datasource:
    """Subclass it: ``get_read_tasks(parallelism)`` returns ``ReadTask``s."""

    def get_name(self) -> str:
        """Return its name."""
        return type(self).__name__.removesuffix("Datasource")

    def estimate_inmemory_data_size(self) -> int | None:
        """Return how many bytes it has, if that is known."""
        return None

    def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
        """Return what reads its parts."""
        raise NotImplementedError

    def _dataset(self, parallelism: int) -> Any:
        tasks = self.get_read_tasks(parallelism)
        numbers = headrace.from_items([{"task": number} for number in range(len(tasks))])
        return numbers.map_batches(_Reading(tasks, self.get_name()), batch_size=1)


class _Reading:
    def __init__(self, tasks: Sequence[ReadTask], name: str) -> None:
        self._tasks, self.__name__ = tasks, f"read {name}"

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[Any]:
        yield from self._tasks[int(batch["task"][0])]()


class FileBasedDatasource(Datasource):
    """Subclass it: ``_read_stream(f, path)`` yields the blocks of a file."""

    def __init__(
        self, paths: Any, *, file_extensions: Any = None, include_paths: bool = False, **others: Any
    ) -> None:
        for name in ("partition_filter", "partitioning"):
            if others.get(name) is not None:
                raise not_offered(f"FileBasedDatasource({name}=…)", why="give the paths that are to be read")
        self._paths, self._extensions, self._include_paths = paths, file_extensions, include_paths

    def _read_stream(self, f: Any, path: str) -> Iterator[Any]:
        raise NotImplementedError

    def _dataset(self, parallelism: int) -> Any:
        files = headrace.read_binary_files(self._paths, include_paths=True, compression=None)
        if self._extensions is not None:
            files._plan.source.only_extensions(endings(self._extensions))
        return files.map_batches(_Streams(self, self._include_paths), batch_size=1)


def endings(extensions: Any) -> tuple[str, ...]:
    """Return what names of files end in: ``file_extensions=["jpg", "png"]``."""
    given = [extensions] if isinstance(extensions, str) else list(extensions)
    if not given or not all(isinstance(each, str) and each.strip(".") for each in given):
        raise ArgumentError(f"file_extensions={extensions!r}: give a list such as ['jpg', 'png'].")
    return tuple(f".{each.lstrip('.').lower()}" for each in given)


class SQLDatasource(Datasource):
    """The rows of a query, fetched by one connection, which a function makes."""

    def __init__(self, sql: str, connection_factory: Callable[[], Any]) -> None:
        self._sql, self._connect = sql, connection_factory

    def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
        """Return the one task."""
        return [ReadTask(self._rows, BlockMetadata())]

    def _rows(self) -> Iterator[Any]:
        with contextlib.closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(self._sql)
            names = [each[0] for each in cursor.description]
            columns: list[Any] = list(zip(*cursor.fetchall(), strict=True)) or [[] for _ in names]
            yield pa.table(dict(zip(names, map(list, columns), strict=True)))


class _Streams:
    def __init__(self, source: FileBasedDatasource, include_paths: bool) -> None:
        self._source, self._include_paths = source, include_paths
        self.__name__ = f"read {source.get_name()}"

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[Any]:
        path = batch["path"][0]
        for block in self._source._read_stream(pa.BufferReader(batch["bytes"][0]), path):
            table = BlockAccessor.for_block(block).to_arrow()
            if self._include_paths:
                table = table.append_column("path", pa.array([path] * table.num_rows))
            yield table


# ---------------------------------------------------------------- writing


@dataclass
class WriteResult:
    """What was written."""

    num_rows: int = 0
    size_bytes: int = 0
    write_returns: list[Any] = field(default_factory=list)


class Datasink:
    """Subclass it: ``write(blocks, ctx)`` takes the rows, as tables; ``on_write_complete`` gets what it returns."""

    min_rows_per_write: int | None = None

    def on_write_start(self, *_: Any, **__: Any) -> None:
        """Called before the first row."""

    def write(self, blocks: Iterable[Any], ctx: TaskContext) -> Any:
        """Take rows."""
        raise NotImplementedError

    def on_write_complete(self, write_result: WriteResult) -> None:
        """Called after the last row."""

    def on_write_failed(self, error: Exception) -> None:
        """Called when the run has failed."""

    def get_name(self) -> str:
        """Return its name."""
        return type(self).__name__.removesuffix("Datasink")

    def _take(self, dataset: Any) -> None:
        import pickle

        self.on_write_start(None)
        done = WriteResult()
        written = dataset.map_batches(_Writing(self), batch_format="pyarrow")
        try:
            for batch in written.iter_rows():
                done.num_rows += batch["rows"]
                done.size_bytes += batch["bytes"]
                done.write_returns.append(pickle.loads(batch["returned"]))
        except Exception as error:
            self.on_write_failed(error)
            raise
        finally:
            dataset._last_report = written._last_report
        self.on_write_complete(done)


class _Writing:
    def __init__(self, sink: Datasink) -> None:
        self._sink, self.__name__ = sink, f"write {sink.get_name()}"

    def __call__(self, batch: pa.Table) -> dict[str, list[Any]]:
        import cloudpickle

        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        returned = self._sink.write([table], TaskContext())
        return {"rows": [table.num_rows], "bytes": [table.nbytes], "returned": [cloudpickle.dumps(returned)]}


class SQLDatasink(Datasink):
    """Carries out a statement for each row."""

    def __init__(self, sql: str, connection_factory: Callable[[], Any]) -> None:
        self._sql, self._connect = sql, connection_factory

    def write(self, blocks: Iterable[Any], ctx: TaskContext) -> None:
        """Carry it out for the rows of tables."""
        with contextlib.closing(self._connect()) as connection:
            for block in blocks:
                rows = [tuple(row.values()) for row in block.to_pylist()]
                connection.cursor().executemany(self._sql, rows)
            connection.commit()


class _FileDatasink(Datasink):
    """Writes files into the folder ``path``."""

    def __init__(
        self, path: str, *, file_format: str | None = None, filename_provider: Any = None, **_: Any
    ) -> None:
        self.path, self.file_format = os.fspath(path).removeprefix("local://"), file_format or "bin"

    def _take(self, dataset: Any) -> None:
        from headrace.sinks.files import FileSink

        self.on_write_start(None)
        result = dataset.write_to(
            FileSink(self.path, _OwnFormat(self, isinstance(self, RowBasedFileDatasink)))
        )
        self.on_write_complete(WriteResult(result.rows))


class RowBasedFileDatasink(_FileDatasink):
    """Subclass it: ``write_row_to_file(row, file)`` writes a file for each row."""

    def write_row_to_file(self, row: dict[str, Any], file: Any) -> None:
        """Write a row, a dict."""
        raise NotImplementedError


class BlockBasedFileDatasink(_FileDatasink):
    """Subclass it: ``write_block_to_file(block, file)`` writes a file for each part."""

    def __init__(self, path: str, *, min_rows_per_file: int | None = None, **options: Any) -> None:
        super().__init__(path, **options)

    def write_block_to_file(self, block: BlockAccessor, file: Any) -> None:
        """Write a table."""
        raise NotImplementedError


@dataclass(frozen=True)
class _OwnFormat(Format):
    """The files of a datasink."""

    sink: Any
    by_row: bool
    kind: ClassVar[str] = "datasink"

    @property
    def suffix(self) -> str:
        return str(self.sink.file_format)

    def options(self) -> dict[str, Any]:
        """Return the settings: those of the datasink that are plain values."""
        plain = {
            name: value
            for name, value in vars(self.sink).items()
            if isinstance(value, (str, int, float, bool))
        }
        return {**plain, "path": "", "class": type(self.sink).__qualname__}

    def open(self, stream: Any, schema: pa.Schema) -> Encoder:
        return _OwnEncoder(self.sink, self.by_row, stream, schema)

    def file_names(self) -> Callable[[pa.RecordBatch], Sequence[str]] | None:
        if not self.by_row:
            return None
        numbers = iter(range(1 << 62))
        return lambda batch: [f"{next(numbers):06d}" for _ in range(batch.num_rows)]


class _OwnEncoder(Encoder):
    def __init__(self, sink: Any, by_row: bool, stream: Any, schema: pa.Schema) -> None:
        self._sink, self._by_row, self._stream, self._schema = sink, by_row, stream, schema
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def close(self) -> int:
        table = pa.Table.from_batches(self._batches, self._schema)
        block, into = BlockAccessor.for_block(table), io.BytesIO()
        if self._by_row:
            for row in block.iter_rows():
                self._sink.write_row_to_file(row, into)
        else:
            self._sink.write_block_to_file(block, into)
        self._stream.write(into.getvalue())
        return int(table.num_rows)


class FilenameProvider:
    """Taken without effect: a file is named by shard and run, by which a killed run is recognised."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def get_filename_for_block(self, *_: Any, **__: Any) -> str:
        """Name a file of many rows."""
        raise NotImplementedError

    def get_filename_for_row(self, *_: Any, **__: Any) -> str:
        """Name the file of a row."""
        raise NotImplementedError


def read_datasource(
    datasource: Datasource, *, parallelism: int = -1, override_num_blocks: int | None = None, **others: Any
) -> Any:
    """Return a dataset of what a datasource of yours reads.

    >>> import pyarrow as pa
    >>> class Two(Datasource):
    ...     def get_read_tasks(self, parallelism, *others):
    ...         return [ReadTask(lambda: [pa.table({"x": [1, 2]})], BlockMetadata(2))]
    >>> read_datasource(Two()).take_all()
    [{'x': 1}, {'x': 2}]
    """
    if not isinstance(datasource, Datasource):
        raise ArgumentError(
            f"read_datasource({datasource!r}): it takes an object of a subclass of Datasource."
        )
    return datasource._dataset(override_num_blocks or (parallelism if parallelism > 0 else 8))


# ---------------------------------------------------------------- folders


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
        """Whether it says no more than ``"hive"``, or that values are whole numbers."""
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
    def of(cls, filter_fn: Callable[..., bool], style: Any = "hive", *args: Any, **given: Any) -> Any:
        """Return one by a function of the values.

        >>> PathPartitionFilter.of(lambda values: values["year"] == "2024")(["/data/year=2024/a", "/data/year=1/b"])
        ['/data/year=2024/a']
        """
        return cls(Partitioning(style, *args, **given), filter_fn)

    def __call__(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if self._filter(self._partitioning.values(path))]


_OWN = (
    "Dataset.from_source and write_to take what fills the ports headrace.core.source_ports.Source and Format"
)


def __getattr__(name: str) -> Any:
    raise missing("ray.data.datasource", name, sorted(globals()), _OWN)
