"""SQLite, by Python's own module: each value says its type, so nothing is guessed from the first rows."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from headrace.annex.databases.connections import (
    Column,
    Connection,
    Database,
    file_of,
    file_state,
    quoted_name,
    refuse_twice,
)
from headrace.annex.databases.transactions import FileTransaction, quoted_table, undone
from headrace.errors import SourceError

_KINDS = ("integer", "real", "text", "blob")
_EXACT = 1 << 53  # integers up to here are floats, too
_ARGUMENTS = 100  # SQLite takes 127
_AT_ONCE = 40  # columns whose types are counted in one query
_WAIT_TO_READ = 60.0  # seconds, for another program that writes


class SqliteConnection(Connection):
    """A connection to a file, read-only, in one transaction."""

    errors = (sqlite3.Error, UnicodeError, OverflowError, pa.ArrowException)

    def __init__(self, database: Database, snapshot: str = "") -> None:
        self.database = database
        self._path = file_of(database)
        with self.asking("read"):
            self._connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro",
                uri=True,
                isolation_level=None,
                timeout=_WAIT_TO_READ,
                check_same_thread=False,
            )
            self._connection.create_aggregate("headrace_checksum", -1, _Checksum)  # type: ignore[arg-type]
            self.began = self.state()  # before the transaction: what is written in between is then looked for
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()

    def columns(self, query: str) -> list[Column]:
        """Look at all values: a column of SQLite may hold any type, whatever it was declared as."""
        declared = self._declared(query)
        found: list[Column] = []
        for start in range(0, len(declared), _AT_ONCE):
            some = declared[start : start + _AT_ONCE]
            asked = ", ".join(
                ", ".join(
                    f"count(CASE typeof(q.{quoted_name(name)}) WHEN '{kind}' THEN 1 END)" for kind in _KINDS
                )
                + f", max(CASE typeof(q.{quoted_name(name)}) WHEN 'integer' THEN q.{quoted_name(name)} END)"
                + f", min(CASE typeof(q.{quoted_name(name)}) WHEN 'integer' THEN q.{quoted_name(name)} END)"
                for name, _ in some
            )
            seen = self.rows(f"SELECT {asked} FROM ({query}\n) AS q")[0]
            for i, (name, kind) in enumerate(some):
                value = f"q.{quoted_name(name)}"
                found.append(
                    Column(
                        name, _type_of(name, kind, seen[6 * i : 6 * i + 6]), value, f"{value} COLLATE BINARY"
                    )
                )
        return found

    def _declared(self, query: str) -> list[tuple[str, str]]:
        """Return the names of the columns with the types that they were declared as, or ""."""
        with self.asking("run the query in"):
            cursor = self._connection.execute(f"SELECT * FROM ({query}\n) LIMIT 0")
            bare = self._connection.execute(query) if query else cursor
            names = [each[0] for each in bare.description]
            bare.close()
            refuse_twice([(name, "unknown") for name in names], cased=False)
            self._connection.execute(f"CREATE TEMP VIEW headrace_answer AS {query}\n")
            told = self._connection.execute("PRAGMA temp.table_info(headrace_answer)").fetchall()
            self._connection.execute("DROP VIEW temp.headrace_answer")
        return [(name, kind or "") for name, (_, _, kind, *_) in zip(names, told, strict=True)]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        with self.asking("run the query in"):
            return self._connection.execute(sql).fetchall()

    def bounds(self, column: Column) -> tuple[str, str]:
        """Return the least and the greatest value that is finite."""
        finite = f"CASE WHEN abs({column.value}) < 9e999 THEN {column.value} END"
        name = finite if pa.types.is_floating(column.type) else column.value
        return f"min({name})", f"max({name})"

    def checksum(self, columns: Sequence[Column]) -> str:
        """Return the sums of hashes of the rows, computed here."""
        names = [column.value for column in columns]
        some = [names[i : i + _ARGUMENTS] for i in range(0, len(names), _ARGUMENTS)]
        return " || ".join(f"headrace_checksum({', '.join(each)})" for each in some)

    def batches(self, sql: str, columns: Sequence[Column], rows: int) -> Iterator[pa.RecordBatch]:
        """Fetch rows as Python has them, and make columns of the settled types of them."""
        schema = pa.schema([(column.name, column.type) for column in columns])
        with self.asking("read the query's rows from"):
            cursor = self._connection.execute(sql)
            while fetched := cursor.fetchmany(rows):
                values = zip(zip(*fetched, strict=True), schema, strict=True)
                yield pa.record_batch([_array(each, field.type) for each, field in values], schema=schema)

    def state(self) -> tuple[int, ...]:
        """Return sizes and times of the file and its log, and the counter of changes in the file."""
        return file_state(self._path, "-wal", counter=True)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class _Checksum:
    """Adds up hashes of rows; types count, too: 1 is not 1.0."""

    def __init__(self) -> None:
        self._sum = 0

    def step(self, *values: Any) -> None:
        digest = hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._sum += int.from_bytes(digest, "big")

    def finalize(self) -> str:
        return f"{self._sum % (1 << 128):x}."


def _type_of(name: str, declared: str, seen: Sequence[Any]) -> pa.DataType:
    """Return the type for a column that holds so many integers, floats, texts and blobs."""
    held = {kind: n for kind, n in zip(_KINDS, seen, strict=False) if n}
    if not held:
        return _affinity(declared) or pa.null()
    if held.keys() == {"integer", "real"} and max(abs(seen[4]), abs(seen[5])) <= _EXACT:
        return pa.float64()
    if len(held) > 1:
        counted = " and ".join(f"{n:,} of type {kind}" for kind, n in held.items())
        raise SourceError(
            f"The query's column {name!r} holds values of several types, {counted}, and a column here has one. Say "
            f"in the query which it is, such as CAST({name} AS TEXT), or leave out the rows that are wrong, by "
            f"WHERE typeof({name}) = '{max(held, key=held.__getitem__)}'."
        )
    kinds = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}
    return kinds[next(iter(held))]


def _affinity(declared: str) -> pa.DataType | None:
    """Return the type for a column by SQLite's rules for declared types; None for what they call numeric."""
    for parts, kind in (
        (("INT",), pa.int64()),
        (("CHAR", "CLOB", "TEXT"), pa.string()),
        (("BLOB",), pa.binary()),
        (("REAL", "FLOA", "DOUB"), pa.float64()),
    ):
        if any(part in declared.upper() for part in parts):
            return kind
    return None


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, kind)


_WAIT_TO_WRITE = 300.0  # seconds, for others that read or write
_DECLARED = {pa.float32(): "REAL", pa.float64(): "REAL", pa.string(): "TEXT", pa.binary(): "BLOB"}


class SqliteTransaction(FileTransaction):
    """A connection to a file, which is made if there is none."""

    failures = (sqlite3.Error,)
    refused = (sqlite3.IntegrityError, sqlite3.DataError)
    temporary = "temp.headrace_rows_of_parts"

    def __init__(self, database: Database) -> None:
        try:
            self._connection = sqlite3.connect(database.path, isolation_level=None, timeout=_WAIT_TO_WRITE)
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise undone(database, "write to", error) from None

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return types by SQLite's rules for declared ones: a column converts what is inserted by these, too."""
        found = self._connection.execute(f"PRAGMA table_info({quoted_table(table)})").fetchall()
        held = {
            name: pa.int64() if "BOOL" in kind.upper() else _affinity(kind) for _, name, kind, *_ in found
        }
        return held or None

    def unique(self, table: str) -> list[frozenset[str]]:
        """Ask for indexes of all rows, and for the primary key, which may be the number of the row."""
        run = self._connection.execute
        columns = run(f"PRAGMA table_info({quoted_table(table)})").fetchall()
        found = [{name for _, name, _, _, _, place in columns if place}]
        for _, index, is_unique, _, partial in run(f"PRAGMA index_list({quoted_table(table)})").fetchall():
            if is_unique and not partial:
                found.append({row[2] for row in run(f"PRAGMA index_info({quoted_name(index)})").fetchall()})
        return [frozenset(names) for names in found if names and None not in names]

    def create(self, table: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        """Make a table of INTEGER, REAL, TEXT and BLOB."""
        columns = [f"{quoted_name(f.name)} {_DECLARED.get(f.type, 'INTEGER')}" for f in schema]
        if key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted_name, key))})")
        self._connection.execute(f"CREATE TABLE {quoted_table(table)} ({', '.join(columns)})")

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows as Python has them."""
        names = ", ".join(quoted_name(name) for name in schema.names)
        marks = ", ".join("?" * len(schema))
        sql = f"INSERT INTO {quoted_table(table)} ({names}) VALUES ({marks})"
        with self.taking_rows():
            for batch in batches:
                columns = [column.to_pylist() for column in batch.columns]
                self._connection.executemany(sql, zip(*columns, strict=True))
