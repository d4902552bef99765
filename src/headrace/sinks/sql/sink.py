"""Rows into a table: parts are staged as Parquet files, and inserted when they are published."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.core import failpoints
from headrace.core.databases.addresses import Database
from headrace.core.files import safe_files
from headrace.core.work import Durability, StagedFile
from headrace.errors import OutputExists, SinkError
from headrace.sinks.files import FileSink, _size
from headrace.sinks.parquet import ParquetEncoder, ParquetSink
from headrace.sinks.sql.opening import begun
from headrace.sinks.sql.transactions import Refused, Transaction, failed, quoted
from headrace.sinks.sql.types import fits, stored
from headrace.sinks.staged import StagedStream

COMMITS = "headrace_commits"
_BATCH = 65_536


@dataclass(frozen=True)
class SqlSink(ParquetSink):
    """Parts in a local folder, and their rows in a table.

    ``append``: each part's rows and its row in ``headrace_commits`` are one transaction. ``overwrite``: when all
    parts are there, one transaction replaces all rows of the table. A part that the table of commits names is never
    inserted again, so the database's own word decides what is done.
    """

    database: Database = field(kw_only=True, repr=False)
    table: str = field(kw_only=True)
    table_mode: Literal["append", "overwrite", "error"] = field(default="append", kw_only=True)

    kind: ClassVar[str] = "table"

    def describe(self) -> dict[str, Any]:
        """Return the table and its database, without what is secret."""
        about = {"table": self.table, "database": str(self.database), "mode": self.table_mode}
        return {**super().describe(), **about}

    def why_not_joined(self) -> str:
        """Nothing is copied from files into a table."""
        return "the rows go to a table"

    # ------------------------------------------------------------ in workers

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that no table holds, or that does not fit the table that is there."""
        super().check_schema(self._stored(schema))
        if self.database.scheme != "postgresql" and not os.path.exists(self.database.path):
            return
        with self._transaction("look at") as transaction:
            self._check_columns(transaction.columns(self.table), self._stored(schema))

    def _stored(self, schema: pa.Schema) -> pa.Schema:
        found = []
        for column in schema:
            kind = stored(column.type)
            lite = self.database.scheme == "sqlite"
            if kind is None or (lite and (pa.types.is_temporal(kind) or pa.types.is_decimal(kind))):
                raise SinkError(
                    f"The column {column.name!r} is of type {column.type}, which cannot be written to a table"
                    f"{' of SQLite, which has no such type' if kind is not None else ''}. Make numbers, booleans, "
                    "texts, bytes, dates or times of it in a step, such as a text; or leave it out by drop_columns."
                )
            found.append(pa.field(column.name, kind))
        return pa.schema(found)

    def _check_columns(self, there: dict[str, pa.DataType | None] | None, schema: pa.Schema) -> None:
        if there is None:
            return
        for column in schema:
            if column.name not in there:
                raise SinkError(
                    f"The table {self.table} in {self.database} has no column {column.name!r}; it has "
                    f"{', '.join(list(there)[:20])}. Add the column there, or rename or drop it here."
                )
            held = there[column.name]
            lite = (
                self.database.scheme == "sqlite" and pa.types.is_boolean(column.type) and held == pa.int64()
            )
            if held is None or not (lite or fits(column.type, held)):
                raise SinkError(
                    f"The column {column.name!r} is of type {column.type}, and the table {self.table} in "
                    f"{self.database} has it as {held or 'a type that is not written'}, which does not hold all its "
                    "values as they are. Convert the column in a step, or write to another table."
                )

    def encoder(self, stream: StagedStream, schema: pa.Schema) -> Any:
        """Return an encoder of Parquet that brings rows to the types in which they are inserted."""
        return _StoredEncoder(self, stream, self._stored(schema))

    # ------------------------------------------------------------ in the driver

    def bind(self, *, run: str, staging: str, digits: int, durability: Durability) -> FileSink:
        """Bind to a run; with ``error``, refuse a table with rows of others."""
        bound = super().bind(run=run, staging=staging, digits=digits, durability=durability)
        if self.table_mode == "error":
            with self._transaction("look at") as transaction:
                self._make_commits(transaction)
                ours = transaction.rows(f"SELECT 1 FROM {COMMITS} WHERE run = '{run}' LIMIT 1")
                others = not ours and transaction.columns(self.table) is not None
                if others and transaction.rows(f"SELECT 1 FROM {quoted(self.table)} LIMIT 1"):
                    raise OutputExists(
                        f"The table {self.table} in {self.database} has rows already, and mode='error' was asked "
                        "for. mode='append' adds to them, mode='overwrite' replaces them."
                    )
        return bound

    def state(self, file: StagedFile) -> Literal["published", "staged", "missing"]:
        """Say where a part is; one whose rows are in the table is published, even if its file is gone."""
        found = super().state(file)
        if found == "missing" and file.is_part and self.table_mode != "overwrite":
            with self._transaction("look at") as transaction:
                if self._committed(transaction, file.name) is not None:
                    return "published"
        return found

    def publish(self, file: StagedFile) -> None:
        """Insert a part's rows, unless they are there, and give its file its final name."""
        if file.is_part and self.table_mode != "overwrite" and _size(self._final(file)) != file.size:
            self._insert_part(file)
        super().publish(file)

    def _insert_part(self, file: StagedFile) -> None:
        staged = self._staged(file)
        with self._transaction("insert rows into", file) as transaction:
            self._make_commits(transaction)
            if self._committed(transaction, file.name) is not None:
                return
            try:
                self._insert(transaction, staged)
            except Refused as error:
                with contextlib.suppress(OSError):
                    os.unlink(staged)  # so that a corrected run makes this shard again
                raise SinkError(
                    f"The database {self.database} refuses rows of {file.name} for the table {self.table}: "
                    f"{self._told(error)}. None of its rows were inserted. Correct the rows in a step, with "
                    "on_change='continue', or change the table; then run again."
                ) from None
            if file.rows:  # a part of later input may have the name of one without rows
                self._note(transaction, file.name, file.rows)
            failpoints.hit("table.filled")
            transaction.commit()

    def finish(self, success: bytes) -> None:
        """Replace the table's rows, if asked for; see that it has all rows; then put ``_SUCCESS`` in place."""
        made = msgspec.json.decode(success)
        rows = int(made["rows"])
        if self.table_mode == "overwrite":
            self._replace(rows, f"all {made['manifest_sha256']}")
        else:
            with self._transaction("look at") as transaction:
                self._make_commits(transaction)
                sql = (
                    f"SELECT CAST(coalesce(sum(rows), 0) AS BIGINT) FROM {COMMITS} WHERE run = '{self._run}'"
                )
                noted = transaction.rows(sql)[0][0]
            if noted != rows:
                raise SinkError(
                    f"The table {COMMITS} in {self.database} says that {noted:,} rows of this run are in "
                    f"{self.table}, and {rows:,} were made: somebody changed it. See what is in the table, and write "
                    "with another output= to have all rows inserted."
                )
        super().finish(success)

    def _replace(self, rows: int, done: str) -> None:
        """Replace the table's rows, unless it is noted as ``done`` with just these parts."""
        names = sorted(
            n for n in os.listdir(self.root) if n.startswith("part-") and n.endswith(f"-{self._run}.parquet")
        )
        with self._transaction("replace the rows in") as transaction:
            self._make_commits(transaction)
            if self._committed(transaction, done) is not None:
                return
            transaction.execute(f"DELETE FROM {COMMITS} WHERE run = '{self._run}'")  # it had other parts
            if transaction.columns(self.table) is not None:
                transaction.execute(f"DELETE FROM {quoted(self.table)}")
            try:
                written = sum(self._insert(transaction, os.path.join(self.root, name)) for name in names)
            except Refused as error:
                raise SinkError(
                    f"The database {self.database} refuses rows for the table {self.table}: {self._told(error)}. The "
                    "table is as it was. Change it, and run the same command again; or correct the rows in a step."
                ) from None
            if written != rows:
                raise SinkError(
                    f"The files in {self.root} have {written:,} rows, and {rows:,} were made: some are gone. The "
                    f"table {self.table} is as it was. Run again with another output=."
                )
            self._note(transaction, done, rows)
            failpoints.hit("table.filled")
            transaction.commit()

    def _insert(self, transaction: Transaction, path: str) -> int:
        with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
            schema = file.schema_arrow.remove_metadata()
            there = transaction.columns(self.table)
            if there is None:
                transaction.create(self.table, schema)
                there = transaction.columns(self.table) or {}
            self._check_columns(there, schema)
            target = pa.schema(
                [
                    (each.name, each.type if _kept(each.type, there[each.name]) else there[each.name])
                    for each in schema
                ]
            )
            batches = (
                pa.RecordBatch.from_arrays(
                    [c.cast(f.type) for c, f in zip(batch.columns, target, strict=True)], schema=target
                )
                for batch in file.iter_batches(_BATCH)
            )
            transaction.insert(self.table, target, batches)
            return int(file.metadata.num_rows)

    def _make_commits(self, transaction: Transaction) -> None:
        if transaction.columns(COMMITS) is None:
            transaction.execute(
                f"CREATE TABLE IF NOT EXISTS {COMMITS} (run VARCHAR(64) NOT NULL, part VARCHAR(200) NOT NULL, "
                "table_name VARCHAR(200) NOT NULL, rows BIGINT NOT NULL, PRIMARY KEY (run, part))"
            )

    def _committed(self, transaction: Transaction, part: str) -> int | None:
        if transaction.columns(COMMITS) is None:
            return None
        found = transaction.rows(f"SELECT rows FROM {COMMITS} WHERE run = '{self._run}' AND part = '{part}'")
        return int(found[0][0]) if found else None

    def _note(self, transaction: Transaction, part: str, rows: int) -> None:
        table = self.table.replace("'", "''")
        transaction.execute(
            f"INSERT INTO {COMMITS} (run, part, table_name, rows) VALUES ('{self._run}', '{part}', '{table}', {rows})"
        )

    def _told(self, error: Exception) -> str:
        """Return the database's words without the values of rows: a record may be passed on."""
        said = self.database.words_of(error)
        return re.sub(r"DETAIL: .*?(?=CONTEXT:|SQLSTATE|$)|(?<=uplicate key )\".*?\"", "", said)

    @contextlib.contextmanager
    def _transaction(self, doing: str, file: StagedFile | None = None) -> Iterator[Transaction]:
        transaction = begun(self.database)
        try:
            yield transaction
        except transaction.failures as error:
            where = (
                f"the table {self.table} of"
                if file is None
                else f"the table {self.table}, of {file.name}, in"
            )
            raise failed(self.database, f"{doing} {where}", error) from None
        finally:
            with contextlib.suppress(*transaction.failures):
                transaction.close()


def _kept(kind: pa.DataType, there: pa.DataType | None) -> bool:
    """Say whether a column is inserted as it is: decimals of any scale, and what SQLite takes anyway."""
    return (
        there is None or pa.types.is_decimal(kind) or pa.types.is_boolean(kind) or pa.types.is_timestamp(kind)
    )


class _StoredEncoder(ParquetEncoder):
    """Brings batches to the types of the table; a value that would change is an error."""

    def __init__(self, sink: SqlSink, stream: StagedStream, schema: pa.Schema) -> None:
        super().__init__(sink, stream, schema)
        self._stored = schema
        self._no_nan = sink.database.scheme == "sqlite"

    def write(self, batch: pa.RecordBatch) -> None:
        """Cast, and refuse NaN where the database would make a null of it."""
        columns = [column.cast(f.type) for column, f in zip(batch.columns, self._stored, strict=True)]
        for column, about in zip(columns, self._stored, strict=True):
            if self._no_nan and pa.types.is_floating(about.type) and pc.any(pc.is_nan(column)).as_py():
                raise SinkError(
                    f"The column {about.name!r} holds NaN, and SQLite would store a null instead. Put a number or a "
                    "null in its place in a step."
                )
        super().write(pa.RecordBatch.from_arrays(columns, schema=self._stored))
