"""New columns of a Delta table: files with them take the places of those that were read, in one commit."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from headrace.annex.lakes.columns import AddsColumns
from headrace.annex.lakes.delta.sink import DeltaTable, Parts, application
from headrace.annex.lakes.delta.source import DeltaSource
from headrace.annex.lakes.delta.table import library, opened
from headrace.annex.lakes.places import within
from headrace.core.files import safe_files
from headrace.core.stores.addresses import parse
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken
from headrace.core.work import StagedFile
from headrace.errors import SinkError

_NO_ZONE = "timestamp_ntz"
_LOGGED = ("path", "size_bytes", "partition")


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
        full = [file for file in files if file.rows]
        paths = list(_files(self.base_table)) if full else []
        places = {file: paths[number] for number, file in self.placed(full)} if full else {}
        return replace(Parts.of(self, list(places) or files), places=places)

    def compare(self, table: Any, parts: Parts, schema: pa.Schema | None) -> None:
        """Refuse if others have changed what was read, or have made such a column; new rows of theirs are kept."""
        self.columns_of(table)
        if (table.metadata().configuration or {}).get("delta.appendOnly") == "true":
            raise SinkError(
                f"The Delta table {self.place} has delta.appendOnly, so its files cannot be replaced by others with "
                "more columns. Take the setting away, or write to another table."
            )
        used = [within(self.place, unquote(path)) for path in parts.places.values()]
        old, names = (
            pa.schema(self.base_table.schema().to_arrow()).names,
            [] if schema is None else schema.names,
        )
        self.check_kept(table, used, [name for name in names if name not in old], names)

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
                "operation": "ADD COLUMNS WITH VALUES",
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
        now, was = int(time.time() * 1000), _files(self.base_table)
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
