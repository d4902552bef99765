"""What a run commits to an Iceberg table: parts that are added to its rows, or take their place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.lakes.iceberg.partitions import PartitionField, Partitions, data_file, fields_of
from headrace.annex.lakes.iceberg.source import (
    RUN,
    Catalog,
    ancestors,
    history,
    opened,
    store_options,
    told,
    told_by,
)
from headrace.annex.lakes.places import place_of, within
from headrace.annex.lakes.sink import Columns, LakeTable
from headrace.annex.lakes.tables import footers, stored
from headrace.core.table_changes import Change
from headrace.core.target_ports import Sink
from headrace.core.work import StagedFile
from headrace.errors import SinkError
from headrace.sinks.dividing import Folders

_PARTS = "headrace.parts"
Placed = Sequence[tuple[StagedFile, Any]]
"""Parts, each with the file of the table whose place it takes, if it takes one."""
NUMBER = "PARQUET:field_id"


@dataclass(frozen=True)
class IcebergColumns(Columns):
    """What a table is, and how it is partitioned."""

    fields: tuple[PartitionField, ...] = field(default=(), kw_only=True)
    last: int = field(default=0, kw_only=True)  # the highest number of a column that the table has had


@dataclass(frozen=True)
class IcebergTable(LakeTable):
    """A folder of parts below the data of an Iceberg table.

    The snapshot that adds them has the run's name, and a digest of the parts, in its summary. Columns have the
    numbers of the table's, so that readers find them whatever they are called later.
    """

    identifier: str = field(kw_only=True)
    catalog: Catalog = field(kw_only=True, repr=False)
    location: str = field(kw_only=True)

    what: ClassVar[str] = "Iceberg table"
    adding: ClassVar[str] = "Add it to the table first (table.update_schema())"

    @property
    def place(self) -> str:  # type: ignore[override]
        """The name of the table."""
        return self.identifier

    def describe(self) -> dict[str, Any]:
        """Return the table, and how it is written to."""
        return {**super().describe(), "table": self.identifier}

    def kind_of(self, kind: pa.DataType) -> pa.DataType | None:
        """Return the type of a column: there are no integers of less than 32 bits."""
        found = stored(kind)
        return None if found is None else _widened(found)

    def written(self, schema: pa.Schema) -> pa.Schema:
        """Return columns with the numbers that they have, or will have, in the table."""
        if self.columns is None:  # not by the library: it takes a second to import, in each worker
            return fresh(schema)
        there = self.columns.schema
        return pa.schema([numbered(column, there.field(column.name)) for column in schema])

    # ------------------------------------------------------------ partitions

    @property
    def fields(self) -> tuple[PartitionField, ...]:
        """How the table is partitioned."""
        return self.columns.fields if isinstance(self.columns, IcebergColumns) else ()

    def sink(self) -> Sink:
        """Return a sink that divides the rows of a shard as the table is partitioned."""
        divide = self._divided if self.fields else None
        return self.files.in_format(self.format(), self, divide=divide, empty_folders=False)

    def _divided(self, folders: Folders, schema: pa.Schema) -> Partitions:
        return Partitions(self.fields, self.stored(schema, part=True), self.identifier, folders)

    # ------------------------------------------------------------ the table

    def open_table(self) -> Any | None:
        """Open the table as the catalog knows it."""
        return opened(self.identifier, self.catalog)

    def identity_of(self, table: Any) -> str:
        """Return the number that its metadata has."""
        return str(table.metadata.table_uuid)

    def parts_of(self, table: Any, run: str) -> str | None:
        """Return what the snapshot of a run says of its parts."""
        found = (about for about in map(told_by, table.metadata.snapshots) if about.get(RUN) == run)
        return next((str(about.get(_PARTS)) for about in found), None)

    def live(self, table: Any) -> dict[str, int]:
        """Return the files of a table with their rows that are not deleted."""
        found = {}
        for task in table.scan().plan_files():
            taken = sum(each.record_count for each in task.delete_files)
            found[place_of(task.file.file_path)] = max(0, task.file.record_count - taken)
        return found

    def history(self, table: Any) -> Iterator[Change]:
        """Yield what snapshots did, the latest first; then those that are not among what the table is made of."""
        about, now = table.metadata, table.metadata.current_snapshot_id
        yield from history(self.identifier, about, table.io, now, after=None)
        made_of = [now, *ancestors(about, now, None)]
        for each in (each for each in about.snapshots if each.snapshot_id not in made_of):
            words = f"it was rolled back to a snapshot from before, or beside, {each.snapshot_id}"
            yield Change(words, None, "overwrite", (), ())
            yield Change("", None, "append", (), (), told_by(each).get(RUN, ""))

    def columns_of(self, table: Any) -> Columns:
        """Return the columns and the partition spec of a table, which lies where this run began."""
        if place_of(table.location()) != place_of(self.location):
            raise SinkError(
                f"The Iceberg table {self.identifier} lies at {table.location()} now, and this run began at "
                f"{self.location}. Write with another output=."
            )
        last = int(table.metadata.last_column_id)
        return IcebergColumns(_arrow(table.schema()), fields=fields_of(table, self.identifier), last=last)

    # ------------------------------------------------------------ one commit

    def read(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> tuple[Placed, pa.Schema | None]:
        """Return the parts that have rows, and where they go; columns of a run without rows are in its one part."""
        full = [file for file in files if file.rows]
        if schema is None and files and not full:
            (footer,) = footers(self.files, [files[0].name])
            schema = footer.schema.to_arrow_schema()
        return self._placed(full), schema

    def _placed(self, files: Sequence[StagedFile]) -> Placed:
        """Return each part with the file of the table whose place it takes; None: it is added."""
        return [(file, None) for file in files]

    def compare(self, table: Any, parts: Placed, schema: pa.Schema | None) -> None:
        """Refuse a table whose columns are others now."""
        now = self.columns_of(table)
        if schema is not None:
            replace(self, columns=now).stored(schema)

    def commit(self, table: Any | None, parts: Placed, schema: pa.Schema | None, mark: str) -> None:
        """Commit one snapshot."""
        transaction = self._begun(table, schema)
        old = {like.file_path: like for _, like in parts if like is not None}
        if table is not None and self.table_mode == "overwrite":
            old = {task.file.file_path: task.file for task in table.scan().plan_files()}
        about = {RUN: self.files.run, _PARTS: mark, **self._told(schema)}
        update = transaction.update_snapshot(snapshot_properties=about)
        made = self._data_files(transaction, parts)
        with update.overwrite() if old else update.fast_append() as snapshot:
            for file in old.values():
                snapshot.delete_data_file(file)
            for file in made:
                snapshot.append_data_file(file)
        self._send(transaction)

    def faster(self) -> tuple[type[Exception], ...]:
        """Return the library's errors."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError, ValidationException

        return CommitFailedException, TableAlreadyExistsError, ValidationException

    def told(self, doing: str) -> AbstractContextManager[None]:
        """Raise our own errors for those of the library."""
        return told(f"{doing} the Iceberg table", self.identifier)

    def _begun(self, table: Any | None, schema: pa.Schema | None) -> Any:
        if table is None:
            assert schema is not None
            made = iceberg_schema(self.stored(schema))
            return self.catalog.load().create_table_transaction(self.identifier, made, location=self.location)
        table.metadata.properties["commit.retry.num-retries"] = "0"  # in memory: tries again are ours
        return table.transaction()

    def _data_files(self, transaction: Any, parts: Placed) -> list[Any]:
        above = self.location.rstrip("/") + self.files.root[len(place_of(self.location)) :]
        found = footers(self.files, [file.name for file, _ in parts])
        self._check_numbers(transaction, found)

        def made(file: StagedFile, footer: Any, like: Any) -> Any:
            try:
                return data_file(
                    transaction.table_metadata, within(above, file.name), file.size, footer, like
                )
            except (ValueError, KeyError) as error:
                raise SinkError(
                    f"The Iceberg table {self.identifier} was changed during this run, and {file.name} does not fit "
                    f"it any more: {' '.join(str(error).split())[:300]}. Nothing was added: write with another "
                    "output=, so that the files are made again."
                ) from None

        return [made(file, footer, like) for (file, like), footer in zip(parts, found, strict=True)]

    def _check_numbers(self, transaction: Any, footers: Sequence[Any]) -> None:
        """Refuse parts whose columns have other numbers than the table has for them now."""

    def _told(self, schema: pa.Schema | None) -> dict[str, str]:
        """Return what the snapshot says of itself besides."""
        return {}

    def _send(self, transaction: Any) -> None:
        transaction.commit_transaction()


def location_of(catalog: Catalog, identifier: str) -> tuple[str, dict[str, Any]]:
    """Return where a table lies, or where its catalogue would put it; and what is to know of the store there."""
    table, found = opened(identifier, catalog), catalog.load()
    if table is not None:
        location, properties = str(table.location()), {**found.properties, **table.io.properties}
    elif not hasattr(found, "_resolve_table_location"):
        raise SinkError(
            f"There is no Iceberg table {identifier}, and only its catalogue can decide where a new table lies. Make "
            "the table first (catalog.create_table), then run again."
        )
    else:
        namespace, _, name = identifier.rpartition(".")
        with told("find a place for the Iceberg table", identifier):
            found.create_namespace_if_not_exists(namespace)
            location, properties = str(found._resolve_table_location(None, namespace, name)), found.properties
    return location, dict(store_options(properties, place_of(location)))


def iceberg_schema(schema: pa.Schema) -> Any:
    """Return a schema of the library, with the numbers that a new table gives to its columns."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def _arrow(schema: Any) -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=True)


def fresh(schema: pa.Schema, numbers: Iterator[int] | None = None) -> pa.Schema:
    """Return columns with the numbers that a new table gives them: those side by side first, then what is within.

    >>> fresh(pa.schema([("a", pa.list_(pa.int64())), ("b", pa.int64())])).field("b").metadata
    {b'PARQUET:field_id': b'2'}
    """
    numbers = numbers or itertools.count(1)

    def given_numbers(fields: Sequence[pa.Field]) -> list[pa.Field]:
        given = [{NUMBER: str(next(numbers))} for _ in fields]
        return [
            pa.field(each.name, within_it(each.type), each.nullable, metadata=number)
            for each, number in zip(fields, given, strict=True)
        ]

    def within_it(kind: pa.DataType) -> pa.DataType:
        if pt.is_list(kind):
            return pa.list_(*given_numbers([kind.value_field]))
        if pt.is_map(kind):
            return pa.map_(*given_numbers([kind.key_field, kind.item_field]))
        return pa.struct(given_numbers(list(kind))) if pt.is_struct(kind) else kind

    return pa.schema(given_numbers(list(schema)))


def _widened(kind: pa.DataType) -> pa.DataType:
    if pt.is_int8(kind) or pt.is_int16(kind):
        return pa.int32()
    if pt.is_list(kind):
        return pa.list_(pa.field("element", _widened(kind.value_type)))
    if pt.is_struct(kind):
        return pa.struct([pa.field(each.name, _widened(each.type)) for each in kind])
    return pa.map_(_widened(kind.key_type), _widened(kind.item_type)) if pt.is_map(kind) else kind


def numbered(column: pa.Field, like: pa.Field) -> pa.Field:
    """Return a column with the numbers and the nullability of another, and of what is in it."""
    return pa.field(
        column.name, _numbered_type(column.type, like.type), like.nullable, metadata=like.metadata
    )


def _numbered_type(kind: pa.DataType, like: pa.DataType) -> pa.DataType:
    if pt.is_list(kind):
        return pa.list_(numbered(kind.value_field, like.value_field))
    if pt.is_struct(kind):
        return pa.struct([numbered(each, like.field(each.name)) for each in kind])
    if pt.is_map(kind):
        return pa.map_(numbered(kind.key_field, like.key_field), numbered(kind.item_field, like.item_field))
    return kind
