"""Parts as files of a Delta table, added by one transaction that names the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.annex.lakes.delta.table import library, opened, storage, told
from headrace.annex.lakes.places import within
from headrace.annex.lakes.sink import Columns, LakeTable, digest_of
from headrace.annex.lakes.types import footers, statistics
from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd, sync_folder
from headrace.core.work import StagedFile
from headrace.errors import HeadraceError, OutputExists, OutputWriteFailed, SinkError

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

    def has_run(self, table: Any, run: str) -> bool:
        """Say whether a table has the transaction of a run."""
        return table.transaction_version(application(run)) is not None

    def reveal(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
        """Commit the parts, on the very version of the table that they were compared with."""
        mark = int(digest_of(files)[:15], 16)
        parts: Parts | None = None
        for _ in self.tries():
            table = self.open_table()
            before = -1 if table is None else table.version()
            if table is not None and self._is_done(table, mark):
                break
            self._check_same(table, self.there)
            parts = parts or self._parts(files)
            schema = parts.schema if schema is None else schema
            if schema is None and table is None:  # no column is known
                return
            self._check(table, parts, schema)
            failpoints.hit("table.filled")
            try:
                self._send(table, parts, schema, mark)
                break
            except library().exceptions.CommitFailedError:  # somebody else was faster, or the answer was lost
                continue
            except HeadraceError:  # it says what to do
                raise
            except Exception as error:
                now = self.open_table()
                if now is not None and self._is_done(now, mark):
                    break
                if table is not None or now is None:  # else somebody else has just made it
                    raise self._failed(error) from None
        self._sync(before)

    # ------------------------------------------------------------ one commit

    def _parts(self, files: Sequence[StagedFile]) -> Parts:
        return Parts.of(self, files)

    def _check(self, table: Any | None, parts: Parts, schema: pa.Schema | None) -> None:
        """Refuse where the table has changed since the parts were made, such that they do not fit any more."""
        if table is None:
            return
        if self.table_mode == "error":
            raise OutputExists(
                f"Another program made a Delta table at {self.place} during this run, and mode='error' was given. "
                "That table was not changed: mode='append' adds to it."
            )
        now = self.columns_of(table)
        self._check_partitions(now)
        if schema is not None:
            parts.check(replace(self, columns=now), schema)

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

    def _failed(self, error: Exception) -> SinkError:
        try:
            with told(self.place, "add the rows of this run to"):
                raise error
        except HeadraceError as words:
            return SinkError(
                f"{words} The table has none of them, and they are kept: run the same command again."
            )

    # ------------------------------------------------------------ the table

    def _is_done(self, table: Any, mark: int) -> bool:
        return self.is_done(table.transaction_version(application(self.files.run)), mark)

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

    def _sync(self, before: int) -> None:
        """Make the commit survive a loss of power, before ``_SUCCESS`` says that it is there."""
        if not self.files.syncs:
            return
        log = within(self.place, "_delta_log")
        names = sorted(name for name in os.listdir(log) if name.endswith(".json"))
        for name in [n for n in names if int(n.partition(".")[0]) > before] or names[-_SYNCED:]:
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
