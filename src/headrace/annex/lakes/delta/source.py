"""A version of a Delta table: the files that its log names, read as Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from headrace.annex.lakes.delta.table import check_readable, history, opened, told
from headrace.annex.lakes.further_runs import TableOfRuns
from headrace.annex.lakes.places import inside
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import PlainFile
from headrace.core.stores.addresses import Options
from headrace.core.table_changes import Change
from headrace.core.work import Split
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
    partition_by: tuple[str, ...] = ()


class DeltaSource(TableOfRuns[Snapshot, "ParquetLayout"], ParquetSource):
    """Reads one version of a Delta table. Which one is settled when the table is first looked at.

    ``condition``: files in which it holds for no row, by the log's word, are left out. The rows of the others are
    not filtered.
    """

    lake = "Delta"
    choosing = "columns= and filter= of read_delta"

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

    def describe(self) -> dict[str, Any]:
        """Return the table and its version."""
        snapshot = self._settled()
        version = {} if self._runs else {"id": snapshot.table, "version": snapshot.version}
        return {
            "kind": "delta",
            "table": self._place,
            **version,
            "columns": None if self._columns is None else list(self._columns),
        }

    def outside_files(self) -> tuple[str, ...]:
        """Return the columns that the table is partitioned by."""
        return self._settled().partition_by

    def _splits_from(self, file: int) -> list[Split]:
        if not self.files_apart:
            return super()._splits_from(file)
        footers, grain = self.refreshed().footers, msgspec.structs.replace(self._grain(), most_pieces=1)
        return [s for number in range(file, len(footers)) for s in footers[number].splits(number, grain)]

    def _now(self) -> dict[str, Any]:
        return {"id": self._settled().table, "version": self._settled().version}

    def _changes(self, last: Mapping[str, Any]) -> list[Change]:
        found = history(self._place, self._storage, self._settled().version, after=last["version"])
        return [*found][::-1]

    def _files_in(self, version: int | None) -> Mapping[str, Mapping[str, str | None]]:
        """Return the files of a version with the values of their partitions."""
        if version in (None, self._settled().version):
            return self._settled().files
        return _snapshot(self._place, self._storage, version, None, self._condition).files

    def forms(self) -> Mapping[str, str]:
        """Return the forms of the columns that may hold nulls, in the files of earlier runs, too."""
        return {**(self._runs.forms if self._runs else {}), **super().forms()}

    def inspect(self, files: list[InputFile]) -> ParquetLayout:
        """Read the footers; columns and types are those of the table."""
        from headrace.sources.parquet import files as parquet_files

        snapshot = self._settled()
        self._open.clear()
        self._chunks.clear()
        values: dict[str, set[str | None]] = {}
        unread = self._runs.unread if self._runs else {}
        read = [file for file in files if file.path not in unread]
        for file in read:
            for name, value in self._folders_of(file.path).items():
                values.setdefault(name, set()).add(value)
        found = parquet_files.inspect(read, self._columns, hive=None, given=snapshot.schema, values=values)
        if len(read) == len(files):
            return found
        footers = iter(found.footers)
        empty = parquet_files.Footer(found.schema, ())
        every = tuple(empty if file.path in unread else next(footers) for file in files)
        return parquet_files.ParquetLayout.of(found.schema, every, found.forms)

    def plain_files(self) -> Sequence[PlainFile]:
        """Return the files of the version, unless earlier runs have read some of them."""
        return () if self._runs is not None else super().plain_files()

    def _folders_of(self, path: str) -> Mapping[str, str | None]:
        told = self._runs.told if self._runs else {}
        return told[path] if path in told else self._settled().files[str(path)]

    def _listed(self) -> list[InputFile]:
        return self._recorded(list(self._settled().files))

    def _named_by(self) -> str:
        return (
            f"The Delta table {self._place} names it in version {self._settled().version}: it may have been removed "
            "by VACUUM. Read a later version."
        )

    def _look(self) -> Snapshot:
        return _snapshot(self._place, self._storage, self._version, self._moment, self._condition)


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
                "and writers store such values in different ways, so it cannot be read. Write its rows to a table "
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
        file = inside(place, str(path), f"The Delta table {place}")
        if kept is None or unquote(path) in kept:
            found[file] = folder
    folders_by = tuple(table.metadata().partition_columns)
    return Snapshot(str(table.metadata().id), table.version(), schema, found, folders_by)


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
