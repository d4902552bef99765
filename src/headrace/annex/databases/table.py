"""A table of a database: which columns it takes, and how rows are inserted, replaced, and found again."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from headrace.annex.databases.connections import Database, quoted_name
from headrace.annex.databases.transactions import (
    Connections,
    Refused,
    Transaction,
    fits,
    from_files,
    in_files,
    is_plain,
    kept,
    made_temporary,
    quoted_table,
    same_names,
    staged,
    stored,
    undone,
)
from headrace.core.files import safe_files
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Encoder, Format
from headrace.core.work import StagedFile
from headrace.errors import SinkError
from headrace.sinks.files import TableOfFiles
from headrace.sinks.parquet import Parquet

# ---------------- rows that replace those with their key, and whether all are there still


def check_key(
    database: Database, table: str, key: Sequence[str], there: Iterable[str], unique: Sequence[frozenset[str]]
) -> None:
    """Raise ``SinkError`` unless a table that is there has no two rows of one key, by its own word."""
    if frozenset(key) in unique:
        return
    missing = [name for name in key if name not in there]
    if missing:
        raise SinkError(
            f"The table {table} in {database} has no column {missing[0]!r} of key={list(key)}; it has "
            f"{', '.join(list(there)[:20])}."
        )
    others = "; ".join(sorted({", ".join(sorted(names)) for names in unique}))
    columns = ", ".join(map(quoted_name, key))
    raise SinkError(
        f"The table {table} in {database} has no unique constraint on {', '.join(key)}, so several of its rows may "
        "have the same key, and rows cannot be matched by it. "
        f"{f'It has such constraints on: {others}. ' if others else ''}Name the columns of a constraint with key=, "
        f"or make one: CREATE UNIQUE INDEX headrace_key ON {quoted_table(table)} ({columns})."
    )


class RowsAside:
    """Rows of parts in a temporary table, beside the table that they are for."""

    def __init__(
        self,
        transaction: Transaction,
        table: str,
        schema: pa.Schema,
        key: Sequence[str],
        more: Sequence[str] = (),
    ) -> None:
        """``more`` is SQL for columns besides those of the rows."""
        self._transaction, self._schema, self._table = transaction, schema, quoted_table(table)
        self._names, self._key = list(map(quoted_name, schema.names)), list(map(quoted_name, key))
        self._same = " AND ".join(f"u.{name} = r.{name}" for name in self._key)
        self._temporary = made_temporary(transaction, table, [*self._names, *more])

    def collect(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows, in the types of the table."""
        self._transaction.insert(self._transaction.temporary, self._schema, batches)

    def keys(self) -> int:
        """Return how many keys the rows have."""
        return self.number(f"SELECT count(*) FROM {self._keys}")

    def lacking(self) -> int:
        """Return how many of these keys the table has not."""
        there = f"SELECT 1 FROM {self._table} AS u WHERE {self._same}"
        return self.number(f"SELECT count(*) FROM {self._keys} WHERE NOT EXISTS ({there})")

    @property
    def _keys(self) -> str:
        return f"(SELECT DISTINCT {', '.join(self._key)} FROM {self._temporary}) AS r"

    def number(self, sql: str) -> int:
        """Return the one number that a query gives."""
        return int(self._transaction.rows(sql)[0][0])

    def forget(self) -> None:
        """Remove the temporary table."""
        self._transaction.execute(f"DROP TABLE {self._temporary}")


class Upsert(RowsAside):
    """Collects the rows of all parts, then merges them into the table that they are for.

    A key of several rows gets the last of them, in the order in which rows were collected. With ``inserts`` False,
    only rows that are there are updated.
    """

    def __init__(
        self, transaction: Transaction, table: str, schema: pa.Schema, key: Sequence[str], *, inserts: bool
    ) -> None:
        place = _free("headrace_place", schema.names)
        self._place, self._rows = quoted_name(place), 0
        super().__init__(transaction, table, schema, key, [f"CAST(0 AS BIGINT) AS {self._place}"])
        self._inserts = inserts
        self._others = [name for name in self._names if name not in self._key]
        self._number = quoted_name(_free("headrace_number", schema.names))
        self._schema = schema.append(pa.field(place, pa.int64()))

    def collect(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take the next rows."""
        super().collect(map(self._placed, batches))

    def _placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = pa.array(range(self._rows, self._rows + batch.num_rows), pa.int64())
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays([*batch.columns, places], schema=self._schema)

    def merge(self) -> tuple[int, int]:
        """Merge; return how many rows gave way to a later one of their key, and how many keys no row has."""
        run, names, key = self._transaction.execute, ", ".join(self._names), ", ".join(self._key)
        again, unknown, rows = self._rows - self.keys(), 0, self._temporary
        if again:
            number = f"row_number() OVER (PARTITION BY {key} ORDER BY {self._place} DESC)"
            rows = f"(SELECT *, {number} AS {self._number} FROM {rows}) AS r WHERE {self._number} = 1"
        if self._inserts:
            taken = ", ".join(f"{name} = excluded.{name}" for name in self._others)
            run(
                f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {rows}{'' if again else ' WHERE true'} "
                f"ORDER BY {self._place} ON CONFLICT ({key}) DO {f'UPDATE SET {taken}' if taken else 'NOTHING'}"
            )
        else:
            unknown = self.lacking()
            taken = ", ".join(f"{name} = r.{name}" for name in self._others)
            run(f"UPDATE {self._table} AS u SET {taken} FROM (SELECT * FROM {rows}) AS r WHERE {self._same}")
        self.forget()
        return again, unknown


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name for a column that no other has; databases tell them apart without regard to case."""
    others = {other.lower() for other in taken}
    while name in others:
        name += "_"
    return name


_MANY = 2  # times as many rows as ours in the table: then only those that may be ours are compared


class Presence(RowsAside):
    """Collects rows, and counts those that a table has not.

    Rows are compared by the values of their columns, and equal rows are counted: a table that has two of three is
    without one. With a key, only that is compared, as others may update what is beside it.
    """

    def counted(self) -> tuple[int, int]:
        """Return how many rows were collected, or keys, and how many of these the table has not; forget them."""
        found = (self.keys(), self.lacking()) if self._key else self._compared()
        self.forget()
        return found

    def _compared(self) -> tuple[int, int]:
        total = self.number(f"SELECT count(*) FROM {self._temporary}")
        columns = ", ".join(f"{name} AS h{i}" for i, name in enumerate(self._names))
        by = ", ".join(f"h{i}" for i in range(len(self._names)))
        both = (
            f"SELECT {columns}, 1 AS h FROM {self._temporary} UNION ALL "
            f"SELECT {columns}, -1 FROM {self._table}{self._alike(total)}"
        )
        less = f"SELECT sum(h) AS h FROM ({both}) AS b GROUP BY {by} HAVING sum(h) > 0"
        return total, self.number(f"SELECT coalesce(sum(h), 0) FROM ({less}) AS c")

    def _alike(self, total: int) -> str:
        """Return a condition for rows that may be ours, if the table has many others; "" for all."""
        most = _MANY * total
        if count_up_to(self._transaction, self._table, most + 1) <= most:
            return ""
        plain = [
            name
            for name, kind in zip(self._names, self._schema.types, strict=True)
            if not pt.is_fixed_size_list(kind) and not pt.is_list(kind)
        ]
        counts = ", ".join(f"count({name})" for name in plain)
        found = self._transaction.rows(f"SELECT {counts} FROM {self._temporary}")[0] if plain else ()
        full = ", ".join(name for name, count in zip(plain, found, strict=True) if int(count) == total)
        return f" WHERE ({full}) IN (SELECT {full} FROM {self._temporary})" if full else ""


def count_up_to(transaction: Transaction, table: str, most: int) -> int:
    """Return how many rows a table, by its name in SQL, has, or ``most``, if it has more."""
    sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {most}) AS r"
    return int(transaction.rows(sql)[0][0])


_BATCH = 65_536


@dataclass(frozen=True)
class TableOfDatabase(TableOfFiles):
    """Parts in the types of a table, and transactions that insert their rows there; ``SqlTable`` says when."""

    database: Database = field(kw_only=True, repr=False)
    table: str = field(kw_only=True)
    table_mode: Literal["append", "overwrite", "error", "upsert", "update"] = field(
        default="append", kw_only=True
    )
    key: tuple[str, ...] = field(default=(), kw_only=True)
    _there: dict[str, pa.DataType | None] | None = field(default=None, kw_only=True, repr=False)  # when bound
    _connections: Connections = field(default_factory=Connections, kw_only=True, repr=False, compare=False)

    def format(self) -> Format:
        """Return Parquet with rows in the types in which they are inserted."""
        return StoredFormat(self.files.format, self.database, self.key)

    def describe(self) -> dict[str, Any]:
        """Return the table and its database, without what is secret."""
        about = {"table": self.table, "database": str(self.database), "mode": self.table_mode}
        return {**about, "key": list(self.key)} if self.key else about

    def check_source(self, source: Mapping[str, Any]) -> None:
        """Refuse a plan that reads the file of DuckDB into which its parts are inserted while others are read."""
        if self.database.scheme != "duckdb" or not self._part_by_part:
            return
        if source.get("kind") == "sql" and os.path.realpath(str(source["path"])[10:]) == os.path.realpath(
            self.database.path
        ):
            raise SinkError(
                f"The rows are read from {self.database}, and mode={self.table_mode!r} would insert into the same "
                "file at the same time. DuckDB cannot do that: while one process writes a file, no other can open "
                "it. Write to another file; or use mode='upsert' or mode='overwrite', which insert after all rows "
                "were read."
            )
        for each in source.get("sources", ()):
            self.check_source(each)

    @property
    def _part_by_part(self) -> bool:
        return self.table_mode in ("append", "error")

    # ------------------------------------------------------------ in workers

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that no table holds, or that does not fit the table that is there."""
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise SinkError(
                f"The rows have no column {missing[0]!r}, which key={list(self.key)} names; they have "
                f"{', '.join(schema.names[:20])}."
            )
        if self.table_mode == "update" and len(schema.names) == len(self.key):
            raise SinkError(
                f"The rows have no column besides key={list(self.key)}, so mode='update' has nothing to write. "
                "Add the columns that are to be updated."
            )
        if self.database.scheme != "postgresql" and (same := same_names(schema.names)):
            raise SinkError(
                f"The rows have the columns {same[0]!r} and {same[1]!r}, which are the same name in {self.database}. "
                "Rename or drop one of them."
            )
        self._check_columns(
            self._there if self.files.run else self._look(), stored_schema(schema, self.database)
        )

    def _look(self) -> dict[str, pa.DataType | None] | None:
        """Return the columns of the table, if there is one; the driver asks, as a file of DuckDB has one user."""
        if self.database.scheme == "sqlite" and "." in self.table:
            raise SinkError(f"The table {self.table}: SQLite has no schemas. Give its name without a dot.")
        if self._no_database():
            return None
        with self._transaction("look at") as transaction:
            there = transaction.columns(self.table)
            if self.key and there is not None:
                check_key(self.database, self.table, self.key, there, transaction.unique(self.table))
            return there

    def _no_database(self) -> bool:
        """Say whether there is no file of the database; to connect to it would make one."""
        return self.database.scheme != "postgresql" and not os.path.exists(self.database.path)

    def _check_columns(self, there: dict[str, pa.DataType | None] | None, schema: pa.Schema) -> None:
        if there is None:
            if self.table_mode == "update":
                raise SinkError(
                    f"There is no table {self.table} in {self.database}, so mode='update' has no rows to update. "
                    "Check the name; mode='append' makes a table."
                )
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

    # ------------------------------------------------------------ in the driver

    @contextlib.contextmanager
    def _undone(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise SinkError(
                f"The database {self.database} refuses to {doing} rows of the table {self.table}: "
                f"{self._told(error)}. The table was not changed. Change it, and run the same command again; or "
                "correct the rows in a step, with another output=."
            ) from None

    def _insert(self, transaction: Transaction, path: str) -> int:
        with self._opened(path) as file:
            target = self._target(transaction, from_files(file.schema_arrow))
            transaction.insert(self.table, target, converted(file, target))
            return int(file.metadata.num_rows)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[pq.ParquetFile]:
        with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
            yield file

    def _target(self, transaction: Transaction, schema: pa.Schema) -> pa.Schema:
        """Return the types in which rows are inserted; make the table if there is none."""
        there = transaction.columns(self.table)
        if there is None:
            self._check_columns(there, schema)
            self._check_not_dropped(transaction)
            transaction.create(self.table, schema, self.key)
            there = transaction.columns(self.table) or {}
        self._check_columns(there, schema)
        return pa.schema(
            [
                (each.name, each.type if kept(each.type, there[each.name]) else there[each.name])
                for each in schema
            ]
        )

    def _check_not_dropped(self, transaction: Transaction) -> None:
        """Raise ``SinkError`` if the table that is about to be made was there before in this run."""

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
            raise undone(self.database, f"{doing} {where}", error) from None
        finally:
            self._connections.ended(transaction)


def converted(file: pq.ParquetFile, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of a part in the types in which they are inserted."""
    for batch in file.iter_batches(_BATCH):
        columns = [c.cast(f.type) for c, f in zip(batch.columns, target, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


@dataclass(frozen=True)
class StoredFormat(Format):
    """``inner`` with rows in the types in which they are inserted."""

    inner: Format
    database: Database
    key: Sequence[str]

    kind: ClassVar[str] = "table"
    suffix: ClassVar[str] = Parquet.suffix

    def options(self) -> dict[str, Any]:
        return self.inner.options()

    def why_not_joined(self) -> str:
        """Nothing is copied from files into a table."""
        return "the rows go to a table"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that no table holds."""
        self.inner.check_schema(in_files(stored_schema(schema, self.database)))

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        schema = stored_schema(schema, self.database)
        return StoredEncoder(self.inner.open(stream, in_files(schema)), schema, self.database, self.key)


class StoredEncoder:
    """Brings batches to the types of the table before they are encoded; a value that would change is an error."""

    def __init__(self, encoder: Encoder, schema: pa.Schema, database: Database, key: Sequence[str]) -> None:
        self._encoder = encoder
        self._stored = schema
        self._database = database
        self._no_nan = database.scheme == "sqlite"
        self._key = key
        self.close = encoder.close

    def write(self, batch: pa.RecordBatch) -> None:
        """Cast, and refuse nulls in a key, and NaN where the database would make a null of it."""
        columns = [
            staged(column, f.name, self._database)
            if pa.types.is_fixed_size_list(f.type)
            else column.cast(f.type)
            for column, f in zip(batch.columns, self._stored, strict=True)
        ]
        for column, about in zip(columns, self._stored, strict=True):
            if about.name in self._key and column.null_count:
                raise SinkError(
                    f"The key column {about.name!r} has nulls, and a row without a key matches no row. Drop such "
                    "rows, or give them a key in a step."
                )
            if self._no_nan and pa.types.is_floating(about.type) and pc.any(pc.is_nan(column)).as_py():
                raise SinkError(
                    f"The column {about.name!r} holds NaN, and SQLite would store a null instead. Replace it with a "
                    "number or a null in a step."
                )
        self._encoder.write(pa.RecordBatch.from_arrays(columns, schema=in_files(self._stored)))


def stored_schema(schema: pa.Schema, database: Database) -> pa.Schema:
    """Return the columns in the types in which they are inserted; raise ``SinkError`` for one that no table holds."""
    found = []
    for column in schema:
        kind = stored(column.type)
        lite = database.scheme == "sqlite"
        if kind is None or (lite and not is_plain(kind)):
            raise SinkError(
                f"The column {column.name!r} is of type {column.type}, which cannot be written to a "
                f"table{' of SQLite, which has no such type' if kind is not None else ''}. Convert it in a step "
                "to numbers, booleans, texts, bytes, dates, times or float32 vectors of one length; or leave it "
                "out with drop_columns."
            )
        found.append(pa.field(column.name, kind))
    return pa.schema(found)
