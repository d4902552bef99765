"""A version of a Delta table: the files that its log names, read as Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headrace.core.files.input_files import InputFile
from headrace.core.stores.addresses import is_address
from headrace.core.stores.options import Options
from headrace.core.tables.delta import check_readable, opened, told
from headrace.core.tables.places import within
from headrace.core.warn import warn
from headrace.errors import NothingMatched, SourceError
from headrace.sources.parquet.source import ParquetSource

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.sources.parquet.files import ParquetLayout


_EXACT_DIGITS = 15  # of a decimal that went through a float
_CLOCK = 1.0  # second: stores tell times of objects so exactly


@dataclass(frozen=True)
class Snapshot:
    """What a version of a table says: its columns, and its files with the values of columns that these lack."""

    table: str
    version: int
    schema: pa.Schema
    files: Mapping[str, Mapping[str, str | None]]


class DeltaSource(ParquetSource):
    """Reads one version of a Delta table. Which one is settled when the table is first looked at.

    ``condition``: files in which it holds for no row, by the log's word, are left out. The rows of the others are
    not filtered.
    """

    def __init__(
        self,
        place: str,
        *,
        version: int | None = None,
        moment: str | None = None,
        columns: Sequence[str] | None = None,
        condition: pc.Expression | None = None,
        options: Options = (),
    ) -> None:
        super().__init__(place, columns=columns, partitioning=None)
        self._place = place
        self._version = version
        self._moment = moment
        self._condition = condition
        self._storage = options
        self._snapshot: Snapshot | None = None

    def describe(self) -> dict[str, Any]:
        """Return the table and its version."""
        snapshot = self._settled()
        return {
            "kind": "delta",
            "table": self._place,
            "id": snapshot.table,
            "version": snapshot.version,
            "columns": None if self._columns is None else list(self._columns),
        }

    def as_planned(self, described: Mapping[str, Any]) -> DeltaSource:
        """Return this source with the version that a run was planned with, unless another one was asked for."""
        asked = self._version is not None or self._moment is not None
        mine = self.describe()
        version = described.get("version")
        same = {**mine, "version": version} == dict(described)
        if asked or not same or version == mine["version"] or not isinstance(version, int):
            return self
        warn(
            f"The Delta table {self._place} is at version {mine['version']} now; this run was planned with version "
            f"{version}, and goes on with that. A run with another output= reads the newer one."
        )
        copy: DeltaSource = object.__new__(type(self))
        unread: dict[str, Any] = {"_version": version, "_snapshot": None, "_files": [], "_inspected": None}
        copy.__dict__ = {**self._without_handles(), **unread}
        return copy

    def inspect(self, files: list[InputFile]) -> ParquetLayout:
        """Read the footers; columns and types are those of the table."""
        from headrace.sources.parquet import files as parquet_files

        snapshot = self._settled()
        self._open.clear()
        self._chunks.clear()
        values: dict[str, set[str | None]] = {}
        for file in files:
            for name, value in self._folders_of(file.path).items():
                values.setdefault(name, set()).add(value)
        return parquet_files.inspect(files, self._columns, hive=False, given=snapshot.schema, values=values)

    def splits_from(self, file: int) -> None:
        """Return None: files that are new in a table may hold rows that others held before, put together anew."""

    def _folders_of(self, path: str) -> Mapping[str, str | None]:
        return self._settled().files.get(str(path), {})

    def _listed(self) -> list[InputFile]:
        return self._recorded(list(self._settled().files))

    def _recorded(self, paths: Sequence[str]) -> list[InputFile]:
        try:
            return super()._recorded(paths)
        except SourceError as error:
            raise type(error)(
                f"{error} The Delta table {self._place} names it in version {self._settled().version}: it may have "
                "been removed by VACUUM. Read a later version."
            ) from error

    def _settled(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = _snapshot(
                self._place, self._storage, self._version, self._moment, self._condition
            )
        return self._snapshot


def _snapshot(
    place: str, options: Options, version: int | None, moment: str | None, condition: pc.Expression | None
) -> Snapshot:
    import pyarrow as pa

    table = opened(place, options, version)
    if table is None:
        raise NothingMatched(f"There is no Delta table at {place}: it has no _delta_log.")
    if moment is not None:
        with told(place, f"find the version of {moment} of"):
            table.load_as_version(moment)
            latest = opened(place, options)  # of another version, the library numbers the history wrongly
            stamps = (
                {each["version"]: each.get("timestamp", 0) for each in latest.history()} if latest else {}
            )
            made = stamps.get(table.version(), 0) / 1000
        if made > datetime.fromisoformat(moment).timestamp() + _CLOCK:
            raise SourceError(
                f"The Delta table {place} has no version of {moment}: the first that can be read, "
                f"{table.version()}, is later."
            )
    check_readable(table, place)
    with told(place, "read the log of"):
        schema = pa.schema(table.schema().to_arrow())
        actions = pa.table(table.get_add_actions())
        kept = _kept(table, schema, condition)
    for name in table.metadata().partition_columns:
        if not _says_value(schema.field(name).type):
            raise SourceError(
                f"The Delta table {place} is partitioned by the column {name!r} of type {schema.field(name).type}, "
                "whose values writers put down in different ways, so it is not read here. Write its rows to a table "
                "that is partitioned by another column."
            )
    paths = actions["path"].to_pylist()
    folders: list[dict[str, str | None]] = [{} for _ in paths]
    if "partition" in actions.column_names and paths:
        values = actions["partition"].combine_chunks()
        for field, column in zip(values.type, values.flatten(), strict=True):
            for folder, text in zip(folders, column.cast(pa.string()).to_pylist(), strict=True):
                folder[field.name] = text
    found: dict[str, dict[str, str | None]] = {}
    for path, folder in sorted(zip(paths, folders, strict=True), key=lambda each: str(each[0])):
        if is_address(path) or path.startswith(("/", "file:")):
            raise SourceError(
                f"The Delta table {place} names a file outside its own folder, {path!r}, as shallow clones do, which "
                "is not read here."
            )
        if kept is None or unquote(path) in kept:
            found[within(place, unquote(path))] = folder
    return Snapshot(str(table.metadata().id), table.version(), schema, found)


def _says_value(kind: pa.DataType) -> bool:
    """Say whether the text of a partition stands for one value: that of bytes may be escaped in it."""
    import pyarrow.types as pt

    return not (pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind))


def _says_range(about: pa.Table, column: str) -> bool:
    """Say whether the log has the smallest and largest value of a column for each file with any."""
    names = [f"min.{column}", f"max.{column}", f"null_count.{column}", "num_records"]
    if not {*names} <= {*about.column_names}:
        return False
    least, most, nulls, rows = (about[name].to_pylist() for name in names)
    return all(
        (low is not None and high is not None) or (none is not None and none == every)
        for low, high, none, every in zip(least, most, nulls, rows, strict=True)
    )


def _kept(table: Any, schema: pa.Schema, condition: pc.Expression | None) -> set[str] | None:
    """Return the files that may have rows for which a condition holds, by partitions and statistics; None: all.

    NaN stands in no statistics, and the library rounds those of long decimals, so a condition that names a column of
    floats or of such decimals leaves no file out. Nor does one of a column that some file tells no range of: the
    library takes all its values there for nulls.
    """
    import pyarrow as pa
    import pyarrow.types as pt

    def inexact(kind: pa.DataType) -> bool:
        return bool(pt.is_floating(kind) or (pt.is_decimal(kind) and kind.precision > _EXACT_DIGITS))

    named = [] if condition is None else [field for field in schema if field.name in str(condition)]
    if condition is None or any(inexact(field.type) for field in named):
        return None
    folders = set(table.metadata().partition_columns)
    about = pa.table(table.get_add_actions(flatten=True))
    if not all(field.name in folders or _says_range(about, field.name) for field in named):
        return None
    dataset = table.to_pyarrow_dataset()
    return {str(fragment.path) for fragment in dataset.get_fragments(condition)}
