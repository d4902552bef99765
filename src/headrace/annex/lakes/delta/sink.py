"""What a run commits to a Delta table: parts that are added, or new columns in place of the files that were read."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.annex.lakes.columns import AddsColumns, check_new
from headrace.annex.lakes.delta.source import DeltaSource
from headrace.annex.lakes.delta.table import library, opened, storage, told
from headrace.annex.lakes.places import inside, within
from headrace.annex.lakes.remaining import ADDED
from headrace.annex.lakes.sink import Columns, LakeTable, digest_of
from headrace.annex.lakes.tables import footers, statistics
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd, sync_folder
from headrace.core.files.storage import storage_at
from headrace.core.stores.addresses import parse
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken
from headrace.core.work import StagedFile
from headrace.errors import OutputWriteFailed, SinkError, SourceError

_SYNCED = 10  # versions
_KEPT = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity")


def application(run: str) -> str:
    """Return the name by which a table knows a run."""
    return f"headrace-{run}"


@dataclass(frozen=True)
class DeltaTable(LakeTable):
    """A folder of parts in a Delta table.

    The transaction has the action ``txn`` with an application of the run's name; the library refuses a second one.
    Its version is made of the parts, so that other parts of the same run are known.
    """

    what: ClassVar[str] = "Delta table"

    def stored(self, schema: pa.Schema, *, folders: bool = False, part: bool = False) -> pa.Schema:
        """Return the columns as they are written; refuse names that differ in capitals only."""
        made = super().stored(schema, folders=folders, part=part)
        there = [] if self.columns is None else self.columns.schema.names
        seen: dict[str, str] = {}
        for name in dict.fromkeys([*there, *schema.names]):
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise SinkError(
                    f"The columns {other!r} and {name!r} differ in capitals only, and are the same column for the "
                    f"{self.what} {self.place}. Rename or drop one of them in a step."
                )
        return made

    def open_table(self) -> Any | None:
        """Open the newest version."""
        return opened(self.place, self.files.storage.options)

    def identity_of(self, table: Any) -> str:
        """Return the number that its metadata has."""
        return str(table.metadata().id)

    def parts_of(self, table: Any, run: str) -> int | None:
        """Return the version of the transaction of a run."""
        found: int | None = table.transaction_version(application(run))
        return found

    # ------------------------------------------------------------ one commit

    def mark_of(self, files: Sequence[StagedFile]) -> int:
        """Return a number, as transactions have them."""
        return int(digest_of(files)[:15], 16)

    def read(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> tuple[Parts, pa.Schema | None]:
        """Read the footers."""
        parts = self._parts(files)
        return parts, parts.schema if schema is None else schema

    def _parts(self, files: Sequence[StagedFile]) -> Parts:
        return Parts.of(self, files)

    def compare(self, table: Any, parts: Parts, schema: pa.Schema | None) -> None:
        """Refuse other partitions, and columns of other types."""
        now = self.columns_of(table)
        self._check_partitions(now)
        if schema is not None:
            parts.check(replace(self, columns=now), schema)

    def faster(self) -> tuple[type[Exception], ...]:
        """Return the library's error."""
        return (library().exceptions.CommitFailedError,)

    def told(self, doing: str) -> AbstractContextManager[None]:
        """Raise our own errors for those of the library."""
        return told(self.place, doing)

    def commit(self, table: Any | None, parts: Parts, schema: pa.Schema | None, mark: int) -> None:
        """Commit; the library refuses a second transaction of the run."""
        self._send(table, parts, schema, mark)

    def _send(self, table: Any | None, parts: Parts, schema: pa.Schema | None, mark: int) -> None:
        deltalake = library()
        from deltalake.transaction import create_table_with_add_actions

        about = deltalake.CommitProperties(
            custom_metadata={"headrace": {"run": self.files.run}},
            max_commit_retries=0,
            app_transactions=[deltalake.Transaction(application(self.files.run), mark)],
        )
        actions, folders = parts.actions(self), list(self.files.partition_by)
        if table is not None:
            wanted = self._with_new_columns(table, schema)
            mode = "overwrite" if self.table_mode == "overwrite" else "append"
            table.create_write_transaction(actions, mode, wanted, folders, commit_properties=about)
            return
        assert schema is not None
        create_table_with_add_actions(
            self.place,
            deltalake.Schema.from_arrow(self.stored(schema, folders=True)),
            actions,
            mode="error",
            partition_by=folders,
            storage_options=storage(self.place, self.files.storage.options),
            commit_properties=about,
        )

    def _with_new_columns(self, table: Any, schema: pa.Schema | None) -> Any:
        """Return the schema of the table, after new columns were added to it, if that was asked for."""
        there = pa.schema(table.schema().to_arrow()).names
        made = pa.schema([]) if schema is None else self.stored(schema, folders=True)
        new = [field for field in made if field.name not in there]
        if new:
            table.alter.add_columns(library().Schema.from_arrow(pa.schema(new)).fields)
        return table.schema()

    def columns_of(self, table: Any) -> Columns:
        """Return the columns of a table, unless it asks of its writers what this one does not do."""
        with told(self.place, "look at"):
            about, protocol = table.metadata(), table.protocol()
            schema = pa.schema(table.schema().to_arrow())
            rules = {name for f in table.schema().fields for name in f.metadata if name.startswith(_RULES)}
        settings = about.configuration or {}
        rules |= {name for name in settings if name.startswith("delta.constraints.")}
        if settings.get("delta.columnMapping.mode", "none") != "none":
            rules.add("delta.columnMapping.mode")
        rules |= set(protocol.writer_features or ()) - _KEPT
        if rules:
            raise SinkError(
                f"The Delta table {self.place} needs features that Headrace does not write: "
                f"{', '.join(sorted(rules))}. Write to another table, and insert its rows with an engine that has "
                "them."
            )
        return Columns(schema, tuple(about.partition_columns))

    def sync(self) -> None:
        """Make the commit survive a loss of power, before ``_SUCCESS`` says that it is there."""
        if not self.files.syncs:
            return
        log = within(self.place, "_delta_log")
        names = sorted(name for name in os.listdir(log) if name.endswith(".json"))
        for name in names[-_SYNCED:]:
            with safe_files.file(within(log, name)) as file:
                sync_fd(file.fileno())
        sync_folder(log)
        sync_folder(self.place)


@dataclass(frozen=True)
class Parts:
    """The parts of a run that have rows, their footers, and the files of the table whose places they take."""

    files: Sequence[StagedFile]
    footers: Sequence[Any]
    schema: pa.Schema | None  # of the part without rows that a run without rows has
    places: Mapping[StagedFile, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: DeltaTable, files: Sequence[StagedFile]) -> Parts:
        """Read the footers."""
        full = [file for file in files if file.rows]
        lone = [] if full else files[:1]
        try:
            found = footers(table.files, [file.name for file in full or lone])
            return cls(full, found if full else [], found[0].schema.to_arrow_schema() if lone else None)
        except OSError as error:
            raise OutputWriteFailed(
                f"Cannot read a part of this run, {error.filename or error}, to add it to the {table.what} "
                f"{table.place}. Run the same command again: what is gone is made again."
            ) from error

    def check(self, table: LakeTable, schema: pa.Schema) -> None:
        """Refuse parts whose columns have not the types that the table has now."""
        now = table.stored(schema)
        for footer in self.footers:
            for column in footer.schema.to_arrow_schema():
                if column.type != now.field(column.name).type:
                    raise SinkError(
                        f"The {table.what} {table.place} was changed during this run: its column {column.name!r} is "
                        f"{now.field(column.name).type} now, and the parts have it as {column.type}. Nothing was "
                        "added: write with another output=, so that they are made with the new type."
                    )

    def actions(self, table: DeltaTable) -> list[Any]:
        """Return what a transaction says of each."""
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        return [
            AddAction(
                table.path_of(file.name),
                file.size,
                table.values_of(file.name),
                now,
                True,
                json.dumps({"numRecords": file.rows, **statistics(footer)}, default=str),
            )
            for file, footer in zip(self.files, self.footers, strict=True)
        ]


# ---------------- new columns: files with them take the places of those that were read, in one commit

_NO_ZONE = "timestamp_ntz"
_LOGGED = ("path", "size_bytes", "num_records", "partition")


@dataclass(frozen=True)
class DeltaNewColumns(AddsColumns, DeltaTable):
    """Parts with all columns of one file each, the old ones copied as they are stored, and the new ones.

    The library adds a column in a version of its own, in which nobody has values. So the commit is written here: the
    columns, the files that go and those that come are one version, which is made only if nobody else has made it.
    """

    def at_base(self) -> Any:
        """Open the version that is read."""
        table = opened(self.place, self.files.storage.options, self.base)
        if table is None:
            raise self.changed("it is gone")
        return table

    def added_by(self, table: Any, run: str) -> Sequence[str]:
        """Return the columns that the version of a run names."""
        told_of = (each.get("headrace") or {} for each in table.history())
        return next((each.get("columns", ()) for each in told_of if each.get("run") == run), ())

    def source(self) -> DeltaSource:
        """Return what reads all rows of the version that the run has read."""
        source = DeltaSource(self.place, version=self.base, options=self.files.storage.options)
        return source.for_new_columns(None, {})

    def _parts(self, files: Sequence[StagedFile]) -> Parts:
        """Return the parts with the files whose rows they have; with ``where=``, files that are made of them."""
        was = _files(self.at_base())
        if self.where is None:
            parts = Parts.of(self, files)
            rows = [(path, self._rows_in(path, about)) for path, about in was.items()]
            return replace(parts, places=self.by_file(rows, parts.files))
        paths, made = list(was), self.filled(files)
        places = {file: paths[number] for number, file in made}
        return replace(Parts.of(self, list(places) or files), places=places)

    def compare(self, table: Any, parts: Parts, schema: pa.Schema | None) -> None:
        """Refuse if others have changed what was read, or have made such a column; new rows of theirs are kept."""
        base, now = self.at_base(), self.columns_of(table)
        was, files, used = _files(base), _files(table), parts.places.values()
        gone = next((path for path in used if path not in files), None)
        if gone is None and "deletionVectors" in (table.protocol().reader_features or ()):
            with told(self.place, "read the deletion vectors of"):
                vectors = [
                    path for batch in table.deletion_vectors() for path in batch["filepath"].to_pylist()
                ]
            gone = next((path for path in used if any(each.endswith(path) for each in vectors)), None)
        if gone is not None:
            raise self.changed(
                f"its file {gone}, for whose rows values were computed, was replaced, or rows of it were deleted, "
                f"up to version {table.version()}"
            )
        if (table.metadata().configuration or {}).get("delta.appendOnly") == "true":
            raise SinkError(
                f"The Delta table {self.place} has delta.appendOnly, so its files cannot be replaced by others with "
                "more columns. Take the setting away, or write to another table."
            )
        old = _schema(base).names
        new = [name for name in (schema.names if schema is not None else ()) if name not in old]
        if new or self.where is None:
            check_new(f"{self.what} {self.place}", new, now.schema)
        others = [files[path]["num_records"] or 0 for path in files if path not in was]
        others += [-(was[path]["num_records"] or 0) for path in was if path not in files]
        self.warn_of_rows(sum(others), new if schema is None else new or schema.names)

    def _send(self, table: Any, parts: Parts, schema: pa.Schema | None, mark: int) -> None:
        actions = [*self._about(table, schema or pa.schema([]), mark), *self._replaced(parts)]
        data = "".join(f"{json.dumps(action, default=str)}\n" for action in actions).encode()
        if not self._put(f"_delta_log/{table.version() + 1:020}.json", data):
            raise library().exceptions.CommitFailedError("somebody else was faster")

    def _put(self, name: str, data: bytes) -> bool:
        """Write an entry of the log; False if there is one of this name."""
        return self.files.storage.pick(self._put_on_disk, self._put_in_store)(name, data)

    def _put_in_store(self, name: str, data: bytes) -> bool:
        try:
            StoreWriter(parse(self.place), self.files.storage.options).put(name, data, when=ABSENT)
        except Taken:
            return False
        return True

    def _put_on_disk(self, name: str, data: bytes) -> bool:
        path = within(self.place, name)
        aside = f"{path}.{self.files.run}.tmp"
        if os.path.lexists(aside):
            os.unlink(aside)
        safe_files.create(aside, data, lasting=self.files.syncs)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(aside)
        return True

    def _about(self, table: Any, schema: pa.Schema, mark: int) -> Iterator[dict[str, Any]]:
        """Yield what the version says of itself: who made it, and its columns."""
        deltalake, now = library(), int(time.time() * 1000)
        about, columns = table.metadata(), json.loads(table.schema().to_json())
        there = {each["name"] for each in columns["fields"]}
        made = [
            field.with_nullable(True) for field in self.stored(schema, part=True) if field.name not in there
        ]
        columns["fields"] += json.loads(deltalake.Schema.from_arrow(pa.schema(made)).to_json())["fields"]
        self._check_known(table, columns["fields"][len(there) :])
        names = schema.names if self.where is not None else [field.name for field in made]
        yield {
            "commitInfo": {
                "timestamp": now,
                "operation": ADDED,
                "operationParameters": {"columns": json.dumps(names)},
                "engineInfo": "headrace",
                "headrace": {"run": self.files.run, "columns": names},
            }
        }
        yield {"txn": {"appId": application(self.files.run), "version": mark, "lastUpdated": now}}
        if not made:
            return
        yield {
            "metaData": {
                "id": str(about.id),
                "name": about.name,
                "description": about.description,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(columns),
                "partitionColumns": list(about.partition_columns),
                "createdTime": about.created_time,
                "configuration": about.configuration or {},
            }
        }

    def _check_known(self, table: Any, made: list[dict[str, Any]]) -> None:
        """Refuse a type that the readers of this table need not know."""
        asked = any(_NO_ZONE in json.dumps(each) for each in made)
        if asked and "timestampNtz" not in (table.protocol().reader_features or ()):
            raise SinkError(
                f"A new column holds times without a time zone, and the Delta table {self.place} has not the feature "
                "timestampNtz. Give the times a zone in a step, or add the feature to the table."
            )

    def _replaced(self, parts: Parts) -> Iterator[dict[str, Any]]:
        """Yield the files that go, then those that come, with the partitions of the files whose rows they have."""
        now, was = int(time.time() * 1000), _files(self.at_base())
        for path in {*parts.places.values()}:
            yield {
                "remove": {
                    "path": path,
                    "deletionTimestamp": now,
                    "dataChange": True,
                    "extendedFileMetadata": True,
                    "partitionValues": _values(was[path], self.place),
                    "size": was[path]["size_bytes"],
                }
            }
        for file, action in zip(parts.files, parts.actions(self), strict=True):
            yield {
                "add": {
                    "path": action.path,
                    "partitionValues": _values(was[parts.places[file]], self.place),
                    "size": action.size,
                    "modificationTime": action.modification_time,
                    "dataChange": True,
                    "stats": action.stats,
                }
            }

    def _rows_in(self, path: str, about: dict[str, Any]) -> int:
        """Return how many rows a file has: the log need not say."""
        if about["num_records"] is not None:
            return int(about["num_records"])
        name = inside("", path, f"The Delta table {self.place}").lstrip("/")
        try:
            with storage_at(self.place, self.files.storage.options).opened(name) as data:
                return int(pq.read_metadata(data).num_rows)
        except OSError as error:
            raise SourceError(f"Cannot read {name} of the Delta table {self.place}: {error}.") from error


def _schema(table: Any) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _files(table: Any) -> dict[str, dict[str, Any]]:
    """Return what the log says of each file, by its path there, in the order in which they are read."""
    found = pa.table(table.get_add_actions())
    about = found.select([name for name in _LOGGED if name in found.column_names]).to_pylist()
    return {each["path"]: each for each in sorted(about, key=lambda each: str(each["path"]))}


def _values(about: dict[str, Any], place: str) -> dict[str, str | None]:
    """Return the partition of a file as the log has it: texts."""
    found: dict[str, str | None] = {}
    for name, value in (about.get("partition") or {}).items():
        if value is not None and type(value) not in (str, int, bool, datetime.date):
            raise SinkError(
                f"The Delta table {place} is partitioned by {name!r}, whose values writers store in different ways, "
                "so its files cannot be replaced here. Texts, integers, booleans and dates work."
            )
        found[name] = (
            None if value is None else str(value).lower() if value is True or value is False else str(value)
        )
    return found
