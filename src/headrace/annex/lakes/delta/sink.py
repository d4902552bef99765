"""What a run commits to a Delta table: parts that are added to its rows, or take their place."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa

from headrace.annex.lakes.delta.table import history, library, opened, storage, told
from headrace.annex.lakes.places import within
from headrace.annex.lakes.sink import Columns, LakeTable, digest_of
from headrace.annex.lakes.tables import footers, statistics
from headrace.core.table_changes import Change
from headrace.core.work import StagedFile
from headrace.errors import OutputWriteFailed, SinkError

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
    logs: ClassVar[tuple[str, ...]] = ("_delta_log",)

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

    def live(self, table: Any) -> dict[str, int]:
        """Return the files of a table with their rows that are not deleted, as far as the log tells how many."""
        about = pa.table(table.get_add_actions(flatten=True))
        paths = [within(self.place, unquote(path)) for path in about["path"].to_pylist()]
        found = {path: n or 0 for path, n in zip(paths, about["num_records"].to_pylist(), strict=True)}
        if "deletionVectors" in (table.protocol().reader_features or ()):
            for batch in table.deletion_vectors():
                for path, taken in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                    whole = unquote(path)
                    for name in (each for each in found if whole.endswith(each.removeprefix(self.place))):
                        found[name] -= sum(not kept for kept in taken.as_py())
        return found

    def history(self, table: Any) -> Iterator[Change]:
        """Yield what versions did, the latest first."""
        return history(self.place, self.files.storage.options, int(table.version()))

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
        self._check_partitions(self.columns_of(table))
        if schema is not None:
            self.check_types(table, schema, (footer.schema.to_arrow_schema() for footer in parts.footers))

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
