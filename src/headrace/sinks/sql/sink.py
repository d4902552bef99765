"""Rows into a table: parts are staged as Parquet files, and inserted when they are published."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core import failpoints
from headrace.core.databases.addresses import Database
from headrace.core.files import safe_files
from headrace.core.warn import warn
from headrace.core.work import Durability, StagedFile
from headrace.errors import OutputExists, SinkError
from headrace.sinks.files import FileSink, _size
from headrace.sinks.parquet import ParquetSink
from headrace.sinks.sql.commits import COMMITS, committed, make_commits, note
from headrace.sinks.sql.encoder import StoredEncoder
from headrace.sinks.sql.opening import Connections
from headrace.sinks.sql.transactions import Refused, Transaction, failed, quoted
from headrace.sinks.sql.types import fits, is_plain, kept, same_names, stored
from headrace.sinks.sql.upsert import Upsert, check_key
from headrace.sinks.sql.vectors import from_files, in_files
from headrace.sinks.staged import StagedStream

_BATCH = 65_536


@dataclass(frozen=True)
class SqlSink(ParquetSink):
    """Parts in a local folder, and their rows in a table.

    ``append``: each part's rows and its row in ``headrace_commits`` are one transaction. ``overwrite``: when all
    parts are there, one transaction replaces all rows of the table. ``upsert``: one transaction then merges the rows
    of all parts, in their order, by ``key``, and notes each part. A part that the table of commits names is never
    inserted again, so the database's own word decides what is done.
    """

    database: Database = field(kw_only=True, repr=False)
    table: str = field(kw_only=True)
    table_mode: Literal["append", "overwrite", "error", "upsert"] = field(default="append", kw_only=True)
    key: tuple[str, ...] = field(default=(), kw_only=True)
    _there: dict[str, pa.DataType | None] | None = field(default=None, kw_only=True, repr=False)  # when bound
    _connections: Connections = field(default_factory=Connections, kw_only=True, repr=False, compare=False)

    kind: ClassVar[str] = "table"
    takes_further_runs: ClassVar[bool] = False  # parts of one would be inserted one by one

    def describe(self) -> dict[str, Any]:
        """Return the table and its database, without what is secret."""
        about = {"table": self.table, "database": str(self.database), "mode": self.table_mode}
        key = {"key": list(self.key)} if self.key else {}
        return {**super().describe(), **about, **key}

    def why_not_joined(self) -> str:
        """Nothing is copied from files into a table."""
        return "the rows go to a table"

    def check_source(self, source: Mapping[str, Any]) -> None:
        """Refuse a plan that reads the file of DuckDB into which its parts are inserted while others are read."""
        if self.database.scheme != "duckdb" or not self._part_by_part:
            return
        if source.get("kind") == "sql" and os.path.realpath(str(source["path"])[10:]) == os.path.realpath(
            self.database.path
        ):
            raise SinkError(
                f"The rows are read from {self.database}, and mode={self.table_mode!r} would insert into the same "
                "file while they are read: DuckDB opens a file for one process if that one writes. Write to "
                "another file. Or use mode='upsert' or mode='overwrite', which insert when all rows were read."
            )
        for each in source.get("sources", ()):
            self.check_source(each)

    # ------------------------------------------------------------ in workers

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that no table holds, or that does not fit the table that is there."""
        super().check_schema(in_files(self._stored(schema)))
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise SinkError(
                f"The rows have no column {missing[0]!r}, which key={list(self.key)} names; they have "
                f"{', '.join(schema.names[:20])}."
            )
        if self.database.scheme != "postgresql" and (same := same_names(schema.names)):
            raise SinkError(
                f"The rows have the columns {same[0]!r} and {same[1]!r}, which are one name in {self.database}. "
                "Rename or drop one of them."
            )
        self._check_columns(self._there if self._run else self._look(), self._stored(schema))

    def _look(self) -> dict[str, pa.DataType | None] | None:
        """Return the columns of the table, if there is one; the driver asks, as a file of DuckDB has one user."""
        if self.database.scheme == "sqlite" and "." in self.table:
            raise SinkError(f"The table {self.table}: SQLite has no schemas. Give its name without a dot.")
        if self.database.scheme != "postgresql" and not os.path.exists(self.database.path):
            return None
        with self._transaction("look at") as transaction:
            there = transaction.columns(self.table)
            if self.key and there is not None:
                check_key(self.database, self.table, self.key, there, transaction.unique(self.table))
            return there

    def _stored(self, schema: pa.Schema) -> pa.Schema:
        found = []
        for column in schema:
            kind = stored(column.type)
            lite = self.database.scheme == "sqlite"
            if kind is None or (lite and not is_plain(kind)):
                raise SinkError(
                    f"The column {column.name!r} is of type {column.type}, which cannot be written to a table"
                    f"{' of SQLite, which has no such type' if kind is not None else ''}. Make numbers, booleans, "
                    "texts, bytes, dates, times or float32 vectors of one length of it in a step, such as a text; or "
                    "leave it out by drop_columns."
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
        return StoredEncoder(self, stream, self._stored(schema), self.database, self.key)

    # ------------------------------------------------------------ in the driver

    def bind(self, *, run: str, staging: str, digits: int, durability: Durability) -> FileSink:
        """Bind to a run; with ``error``, refuse a table with rows of others, with ``upsert`` one without that key."""
        bound = super().bind(run=run, staging=staging, digits=digits, durability=durability)
        assert isinstance(bound, SqlSink)
        if self.table_mode == "error":
            with self._transaction("look at") as transaction:
                make_commits(transaction)
                mine = bound._output_run
                ours = transaction.rows(f"SELECT 1 FROM {COMMITS} WHERE run = '{mine}' LIMIT 1")
                others = not ours and transaction.columns(self.table) is not None
                if others and transaction.rows(f"SELECT 1 FROM {quoted(self.table)} LIMIT 1"):
                    raise OutputExists(
                        f"The table {self.table} in {self.database} has rows already, and mode='error' was asked "
                        "for. mode='append' adds to them, mode='overwrite' replaces them."
                    )
        return replace(bound, _there=self._look())

    def kept_rows(self, run: str) -> str:
        """Say why the rows that a run has in the table cannot be made anew; "" where they can."""
        if self.table_mode != "append" and self.table_mode != "error":
            return ""  # they are replaced
        with self._transaction("look at") as transaction:
            if transaction.columns(COMMITS) is None:
                return ""
            found = transaction.rows(f"SELECT 1 FROM {COMMITS} WHERE run = '{run}' LIMIT 1")
        return (
            f"rows of it are in the table {self.table} already, where nothing tells them from others, and all rows "
            "would be added once more"
            if found
            else ""
        )

    def state(self, file: StagedFile) -> Literal["published", "staged", "missing"]:
        """Say where a part is; one whose rows are in the table is published, even if its file is gone."""
        found = super().state(file)
        if found == "missing" and file.is_part and self.table_mode != "overwrite":
            with self._transaction("look at") as transaction:
                if committed(transaction, self._output_run, file.name) is not None:
                    return "published"
        return found

    def publish(self, file: StagedFile) -> None:
        """Insert a part's rows, unless they are there, and give its file its final name."""
        if file.is_part and self._part_by_part and _size(self._final(file)) != file.size:
            self._insert_part(file)
        super().publish(file)

    @property
    def _output_run(self) -> str:
        """The run of the output: a further one has its name, and a number."""
        return self._run.partition("-")[0]

    @property
    def _part_by_part(self) -> bool:
        return self.table_mode in ("append", "error")

    def _insert_part(self, file: StagedFile) -> None:
        staged = self._staged(file)
        with self._transaction("insert rows into", file) as transaction:
            if transaction.is_first:
                make_commits(transaction)
            # a part of later input may have the name of one without rows
            if file.rows and not note(transaction, self._output_run, file.name, self.table, file.rows):
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
            failpoints.hit("table.filled")
            transaction.commit()

    def finish(self, success: bytes) -> None:
        """Replace or merge rows, if asked for; see that the table has all rows; then put ``_SUCCESS`` in place."""
        made = msgspec.json.decode(success)
        rows = int(made["rows"])
        if self.table_mode == "overwrite":
            self._replace(rows, f"all {made['manifest_sha256']}")
        elif self.table_mode == "upsert":
            self._upsert(rows)
        else:
            with self._transaction("look at") as transaction:
                make_commits(transaction)
                self._check_noted(transaction, rows)
        super().finish(success)

    def close(self) -> None:
        """Let go of the database."""
        self._connections.close()

    def _check_noted(self, transaction: Transaction, rows: int) -> None:
        sql = f"SELECT CAST(coalesce(sum(rows), 0) AS BIGINT) FROM {COMMITS} WHERE run = '{self._output_run}'"
        noted = transaction.rows(sql)[0][0]
        if noted != rows:
            raise SinkError(
                f"The table {COMMITS} in {self.database} says that {noted:,} rows of this run are in "
                f"{self.table}, and {rows:,} were made: somebody changed it, or removed parts from {self.root}. See "
                "what is in the table, and write with another output= to have all rows inserted."
            )

    def _parts(self) -> list[str]:
        """Return the names of the run's parts, in the order of their rows."""
        ours = re.compile(rf"part-.*-{self._output_run}(-\d+)?\.parquet")
        names = [name for name in os.listdir(self.root) if ours.fullmatch(name)]
        return sorted(names, key=lambda name: [int(n) for n in name.split("-")[1].split(".")])

    def _replace(self, rows: int, done: str) -> None:
        """Replace the table's rows, unless it is noted as ``done`` with just these parts."""
        with self._transaction("replace the rows in") as transaction:
            make_commits(transaction)
            if not note(transaction, self._output_run, done, self.table, rows):
                return
            transaction.execute(  # it had other parts
                f"DELETE FROM {COMMITS} WHERE run = '{self._output_run}' AND part <> '{done}'"
            )
            with self._undone("replace"):
                if transaction.columns(self.table) is not None:
                    transaction.execute(f"DELETE FROM {quoted(self.table)}")
                written = sum(
                    self._insert(transaction, os.path.join(self.root, name)) for name in self._parts()
                )
            if written != rows:
                raise SinkError(
                    f"The files in {self.root} have {written:,} rows, and {rows:,} were made: some are gone. The "
                    f"table {self.table} is as it was. Run again with another output=."
                )
            failpoints.hit("table.filled")
            transaction.commit()

    @contextlib.contextmanager
    def _undone(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise SinkError(
                f"The database {self.database} refuses to {doing} rows of the table {self.table}: "
                f"{self._told(error)}. The table is as it was. Change it, and run the same command again; or correct "
                "the rows in a step, with another output=."
            ) from None

    def _upsert(self, rows: int) -> None:
        """Merge the rows of the parts that are not noted yet, all in one transaction."""
        again = 0
        with self._transaction("merge rows into") as transaction:
            make_commits(transaction)
            with self._undone("merge"):
                again = self._merge(transaction)
            self._check_noted(transaction, rows)
            failpoints.hit("table.filled")
            transaction.commit()
        if again:
            warn(
                f"{again:,} of the rows that were merged into {self.table} have the key ({', '.join(self.key)}) of a "
                "later row. The last row of each key, in the order of the input, is in the table."
            )

    def _merge(self, transaction: Transaction) -> int:
        upsert: Upsert | None = None
        for name in self._parts():
            with self._opened(os.path.join(self.root, name)) as file:
                target = self._target(transaction, from_files(file.schema_arrow))
                rows = file.metadata.num_rows
                if not rows or not note(transaction, self._output_run, name, self.table, rows):
                    continue
                if upsert is None:
                    unique = transaction.unique(self.table)
                    check_key(
                        self.database, self.table, self.key, transaction.columns(self.table) or (), unique
                    )
                    upsert = Upsert(transaction, self.table, target, self.key)
                upsert.collect(_converted(file, target))
        return 0 if upsert is None else upsert.merge()

    def _insert(self, transaction: Transaction, path: str) -> int:
        with self._opened(path) as file:
            target = self._target(transaction, from_files(file.schema_arrow))
            transaction.insert(self.table, target, _converted(file, target))
            return int(file.metadata.num_rows)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[pq.ParquetFile]:
        with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
            yield file

    def _target(self, transaction: Transaction, schema: pa.Schema) -> pa.Schema:
        """Return the types in which rows are inserted; make the table if there is none."""
        there = transaction.columns(self.table)
        if there is None:
            transaction.create(self.table, schema, self.key)
            there = transaction.columns(self.table) or {}
        self._check_columns(there, schema)
        return pa.schema(
            [
                (each.name, each.type if kept(each.type, there[each.name]) else there[each.name])
                for each in schema
            ]
        )

    def _told(self, error: Exception) -> str:
        """Return the database's words without the values of rows: a record may be passed on."""
        said = self.database.words_of(error)
        return re.sub(r"DETAIL: .*?(?=CONTEXT:|SQLSTATE|$)|(?<=uplicate key )\".*?\"", "", said)

    @contextlib.contextmanager
    def _transaction(self, doing: str, file: StagedFile | None = None) -> Iterator[Transaction]:
        transaction = self._connections.begun(self.database)
        failures: tuple[type[BaseException], ...] = (Refused, *transaction.failures)
        try:
            yield transaction
        except failures as error:
            where = (
                f"the table {self.table} of"
                if file is None
                else f"the table {self.table}, of {file.name}, in"
            )
            raise failed(self.database, f"{doing} {where}", error) from None
        finally:
            self._connections.ended(transaction)


def _converted(file: pq.ParquetFile, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(_BATCH):
        columns = [c.cast(f.type) for c, f in zip(batch.columns, target, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=target)
