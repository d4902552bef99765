"""New columns of an Iceberg table: files with them take the places of those that were read, in one snapshot."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.annex.lakes.columns import AddsColumns
from headrace.annex.lakes.iceberg.sink import (
    NUMBER,
    IcebergColumns,
    IcebergTable,
    Placed,
    fresh,
    iceberg_schema,
    numbered,
)
from headrace.annex.lakes.iceberg.source import COLUMNS, RUN, IcebergSource, told_by
from headrace.annex.lakes.places import place_of
from headrace.core.target_ports import Sink
from headrace.core.work import StagedFile


@dataclass(frozen=True)
class IcebergNewColumns(AddsColumns, IcebergTable):
    """Parts with all columns of one file each, in whose partition they are.

    The new columns get the next numbers of the table when the run begins; the commit is refused if they are taken.
    """

    def sink(self) -> Sink:
        """Return a sink that does not divide rows: each part has those of one file."""
        return self.files.in_format(self.format(), self, empty_folders=False)

    def at_base(self) -> Any:
        """Return the table as the run reads it."""
        table = self.open_table()
        if table is None or (self.base is not None and table.snapshot_by_id(self.base) is None):
            raise self.changed(f"its snapshot {self.base}, which is read, is gone")
        schema = self.files.source.get("schema", table.metadata.current_schema_id)
        update = {"current_snapshot_id": self.base, "current_schema_id": schema}
        table.metadata = table.metadata.model_copy(update=update)
        return table

    def added_by(self, table: Any, run: str) -> Sequence[str]:
        """Return the columns that the snapshot of a run names."""
        told = map(told_by, table.metadata.snapshots)
        found: list[str] = json.loads(next((each[COLUMNS] for each in told if each.get(RUN) == run), "[]"))
        return found

    def written(self, schema: pa.Schema) -> pa.Schema:
        """Return columns with the numbers that they have, or will have, in the table."""
        assert isinstance(self.columns, IcebergColumns)
        there, numbers = self.columns.schema, itertools.count(self.columns.last + 1)
        return pa.schema(
            [
                numbered(column, there.field(column.name))
                if column.name in there.names
                else fresh(pa.schema([column.with_nullable(True)]), numbers).field(0)
                for column in schema
            ]
        )

    def source(self) -> IcebergSource:
        """Return what reads all rows of the snapshot that the run has read."""
        source = IcebergSource(self.identifier, self.catalog)
        return source.for_new_columns(None, self.files.source)

    def compare(self, table: Any, parts: Placed, schema: pa.Schema | None) -> None:
        """Refuse if others have changed what was read, or have made such a column; new rows of theirs are kept."""
        super().compare(table, parts, schema)
        used, names = [place_of(like.file_path) for _, like in parts], [] if schema is None else schema.names
        self.check_kept(table, used, self._made(schema).names, names)

    def _made(self, schema: pa.Schema | None) -> pa.Schema:
        wanted = schema if schema is not None else pa.schema([])
        return pa.schema([column for column in self.stored(wanted, part=True) if self._is_new(column.name)])

    def _begun(self, table: Any | None, schema: pa.Schema | None) -> Any:
        """Begin with the new columns."""
        transaction = super()._begun(table, schema)
        with transaction.update_schema() as update:
            for column in iceberg_schema(self._made(schema)).fields:
                update.add_column((column.name,), column.field_type)  # a name may have a dot
        return transaction

    def _is_new(self, name: str) -> bool:
        assert self.columns is not None
        return name not in self.columns.schema.names

    def _told(self, schema: pa.Schema | None) -> dict[str, str]:
        names = [] if schema is None else schema.names
        return {COLUMNS: json.dumps([name for name in names if self.where is not None or self._is_new(name)])}

    def _check_numbers(self, transaction: Any, footers: Sequence[Any]) -> None:
        schema = transaction.table_metadata.schema()
        for column in (column for footer in footers for column in footer.schema.to_arrow_schema()):
            if int(column.metadata[NUMBER.encode()]) != schema.find_field(column.name).field_id:
                raise self.changed(f"others added columns, and {column.name!r} has another number now")

    def _placed(self, files: Sequence[StagedFile]) -> Placed:
        """Return files with those whose places they take."""
        if not files:
            return []
        tasks = {place_of(task.file.file_path): task.file for task in self.base_table.scan().plan_files()}
        read = [tasks[path] for path in sorted(tasks)]
        return [(file, read[number]) for number, file in self.placed(files)]
