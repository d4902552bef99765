"""What writing needs of a database: one transaction, the table that says which parts it has, and its types."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.annex.databases.connections import Database, adapter, quoted_name
from headrace.core.arrow.plain import plain
from headrace.errors import SinkError


class Refused(Exception):
    """The database refuses the rows themselves: a constraint, or a value that it cannot hold."""


class Transaction(Protocol):
    """A connection in one transaction, which is rolled back unless ``commit`` is called. It raises ``failures``.

    Subclass it: what has a default here need not be written.
    """

    failures: tuple[type[BaseException], ...]
    """The errors of its driver."""

    refused: tuple[type[BaseException], ...]
    """Those of them that are about the rows themselves."""

    temporary: str
    """The name of the temporary table, with its schema, that ``made_temporary`` makes; ``insert`` takes it."""

    is_first: bool = True
    """True unless a transaction of this connection was committed."""

    @contextlib.contextmanager
    def taking_rows(self) -> Iterator[None]:
        """Raise ``Refused`` for rows that the database does not take."""
        try:
            yield
        except self.refused as error:
            raise Refused(str(error)) from None

    def columns(self, table: str) -> dict[str, pa.DataType | None] | None:
        """Return the columns of a table with the types that they hold, None for others; None if there is no table."""
        ...

    def unique(self, table: str) -> list[frozenset[str]]:
        """Return the sets of columns in which no two rows of a table are equal, by its constraints."""
        ...

    def create(self, table: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        """Make a table, maybe with a primary key."""
        ...

    def insert(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert rows by the names of their columns. Raises ``Refused`` for rows that the database does not take."""
        ...

    def execute(self, sql: str) -> None:
        """Run a statement."""
        ...

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def rests(self) -> bool:
        """After ``commit``: stay connected, without a transaction. False if it was not committed, or cannot be.

        Default: it cannot, as others may wait for the file.
        """
        return False

    def again(self) -> bool:
        """Begin another transaction of a connection that rests; False if it was lost. Default: it never rests."""
        return False

    def close(self) -> None:
        """Roll back what is not committed, and let go."""
        ...


class FileTransaction(Transaction):
    """A transaction in a file, by a driver whose connections run statements."""

    _connection: Any

    def execute(self, sql: str) -> None:
        with self.taking_rows():
            self._connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        return found

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


_FRESH = 30.0  # seconds; servers, and what is between, drop connections that rest for minutes


def begun(database: Database) -> Transaction:
    """Connect to a database and begin a transaction."""
    found: Transaction = adapter(database, "Transaction")(database)
    return found


class Connections:
    """Begins one transaction after another, and keeps the connection of one that was committed for the next.

    To connect to PostgreSQL takes as long as to insert 50,000 rows. A connection whose transaction was not committed
    is closed. A copy in another process has none.
    """

    def __init__(self) -> None:
        self._kept: Transaction | None = None
        self._since = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Connections, ()

    def begun(self, database: Database) -> Transaction:
        """Begin a transaction: of the connection that was kept, unless it was lost or rests for long."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if time.monotonic() - self._since < _FRESH and kept.again():
                return kept
            _closed(kept)
        return begun(database)

    def ended(self, transaction: Transaction) -> None:
        """Take back a connection: one that may be used again is kept, another one is closed."""
        if self._kept is None and transaction.rests():
            self._kept, self._since = transaction, time.monotonic()
        else:
            _closed(transaction)

    def close(self) -> None:
        """Close the connection that is kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            _closed(kept)


def _closed(transaction: Transaction) -> None:
    with contextlib.suppress(*transaction.failures):
        transaction.close()


def quoted_table(table: str) -> str:
    """Return the name of a table, maybe with its schema before a dot, as SQL has it.

    >>> print(quoted_table("shop.sales"))
    "shop"."sales"
    """
    return ".".join(map(quoted_name, table.split(".")))


def made_temporary(transaction: Transaction, table: str, columns: Sequence[str]) -> str:
    """Make a temporary table without rows, of columns that a table has; return its name in SQL."""
    transaction.execute(
        f"CREATE TEMPORARY TABLE {quoted_name(transaction.temporary.partition('.')[2])} AS "
        f"SELECT {', '.join(columns)} FROM {quoted_table(table)} WHERE 1 = 0"
    )
    return quoted_table(transaction.temporary)


def keyed(table: str, key: Sequence[str]) -> str:
    """Return the statement that gives a table without rows a primary key."""
    return f"ALTER TABLE {quoted_table(table)} ADD PRIMARY KEY ({', '.join(map(quoted_name, key))})"


def undone(database: Database, doing: str, error: BaseException) -> SinkError:
    """Return the error for what a driver raised, without secrets. Raise it ``from None``: its cause may hold some."""
    return SinkError(
        f"Cannot {doing} {database}: {database.words_of(error)}. The transaction was undone. Fix the cause, and run "
        "the same command again: finished work is kept, and nothing is inserted twice."
    )


COMMITS = "headrace_commits"


def make_commits(transaction: Transaction) -> None:
    """Make the table, if there is none."""
    if transaction.columns(COMMITS) is None:
        transaction.execute(
            f"CREATE TABLE IF NOT EXISTS {COMMITS} (run VARCHAR(64) NOT NULL, part VARCHAR(200) NOT NULL, "
            "table_name VARCHAR(200) NOT NULL, rows BIGINT NOT NULL, PRIMARY KEY (run, part))"
        )


def noted_parts(transaction: Transaction, run: str) -> set[str]:
    """Return the names of the parts of a run that were noted."""
    if transaction.columns(COMMITS) is None:
        return set()
    return {str(part) for (part,) in transaction.rows(f"SELECT part FROM {COMMITS} WHERE run = '{run}'")}


def forget(transaction: Transaction, run: str) -> None:
    """Remove what is noted of a run."""
    if transaction.columns(COMMITS) is not None:
        transaction.execute(f"DELETE FROM {COMMITS} WHERE run = '{run}'")


def note(transaction: Transaction, run: str, part: str, table: str, rows: int) -> bool:
    """Note a part, in the transaction that inserts its rows, before it does; False if another one has.

    It waits for a transaction that notes the same part, such as one of a driver that was killed while it committed.
    """
    name = table.replace("'", "''")
    noted = transaction.rows(
        f"INSERT INTO {COMMITS} (run, part, table_name, rows) VALUES ('{run}', '{part}', '{name}', {rows}) "
        "ON CONFLICT DO NOTHING RETURNING rows"
    )
    return bool(noted)


# ---------------- types, vectors among them, and whether a column fits one that is there

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WIDER = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def stored(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column is inserted, which holds all its values; None if no table has one.

    >>> print(stored(pa.uint32()), stored(pa.dictionary(pa.int8(), pa.string())), stored(pa.uint64()))
    int64 string None
    """
    if pt.is_dictionary(kind):
        return stored(kind.value_type)
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    for test, found in (
        (pt.is_float16, pa.float32()),
        (pt.is_date, pa.date32()),
        (pt.is_string, pa.string()),
        (pt.is_large_string, pa.string()),
        (pt.is_string_view, pa.string()),
        (pt.is_binary, pa.binary()),
        (pt.is_large_binary, pa.binary()),
        (pt.is_fixed_size_binary, pa.binary()),
    ):
        if test(kind):
            return found
    vector = vector_type(kind)
    if vector is not None:
        return vector
    plain = (
        pt.is_signed_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_decimal128(kind)
    )
    return kind if plain else None


def same_names(names: Sequence[str]) -> tuple[str, str] | None:
    """Return two names that SQLite and DuckDB take for one, as they look at no case; None if there are none.

    >>> same_names(["id", "Score", "score"])
    ('Score', 'score')
    """
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            return other, name
    return None


def fits(kind: pa.DataType, there: pa.DataType) -> bool:
    """Say whether a column of a table holds all values of a type, exactly.

    >>> fits(pa.int32(), pa.int64()), fits(pa.int64(), pa.int32()), fits(pa.int64(), pa.float64())
    (True, False, False)
    """
    if kind == there or (pt.is_timestamp(kind) and pt.is_timestamp(there)):
        return kind == there or (there.unit == "us" and bool(kind.tz) == bool(there.tz))
    if pt.is_fixed_size_list(kind):  # and lists of any size
        return bool(pt.is_list(there) and there.value_type == kind.value_type)
    if kind in _WIDER and there in _WIDER:
        return _WIDER.index(kind) <= _WIDER.index(there)
    if pt.is_floating(there):
        return there == pa.float64() and kind in (pa.int8(), pa.int16(), pa.int32(), pa.float32())
    if pt.is_decimal(there):
        scale, whole = (
            (kind.scale, kind.precision - kind.scale) if pt.is_decimal(kind) else (0, _DIGITS.get(kind, 99))
        )
        return bool(scale <= there.scale and whole <= there.precision - there.scale)
    return False


def kept(kind: pa.DataType, there: pa.DataType | None) -> bool:
    """Say whether a column is inserted as it is: decimals of any scale, and what SQLite takes anyway."""
    return (
        there is None
        or pt.is_decimal(kind)
        or pt.is_boolean(kind)
        or pt.is_timestamp(kind)
        or pt.is_fixed_size_list(kind)
    )


def is_plain(kind: pa.DataType) -> bool:
    """Say whether SQLite has a type for it."""
    return not (pt.is_temporal(kind) or pt.is_decimal(kind) or pt.is_fixed_size_list(kind))


_SIZE = b"headrace.vector"
_HELD = (pa.float32(), pa.float16())


def vector_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column of vectors is inserted; None for columns of other types.

    >>> vector_type(pa.fixed_shape_tensor(pa.float16(), (3,)))
    FixedSizeListType(fixed_size_list<item: float>[3])
    >>> vector_type(pa.list_(pa.float64(), 3))
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        if len(kind.shape) != 1:
            return None
        kind = kind.storage_type
    if not pa.types.is_fixed_size_list(kind) or kind.list_size < 1:
        return None
    return pa.list_(pa.float32(), kind.list_size) if kind.value_type in _HELD else None


def in_files(schema: pa.Schema) -> pa.Schema:
    """Return the types in which parts are staged: Parquet's reader takes no null for an array of a fixed size."""
    return pa.schema(
        [
            pa.field(each.name, pa.list_(pa.float32()), metadata={_SIZE: str(each.type.list_size)})
            if pa.types.is_fixed_size_list(each.type)
            else each
            for each in schema
        ]
    )


def from_files(schema: pa.Schema) -> pa.Schema:
    """Return the types that ``in_files`` was given."""
    found = []
    for each in schema:
        size = (each.metadata or {}).get(_SIZE)
        found.append(pa.field(each.name, each.type if size is None else pa.list_(pa.float32(), int(size))))
    return pa.schema(found)


def staged(column: pa.Array, name: str, database: Database) -> pa.Array:
    """Return vectors as lists; refuse numbers that a vector of the database cannot have."""
    storage = plain(column)
    values = storage.flatten().cast(pa.float32())  # without what lies behind nulls
    if database.scheme == "postgresql" and (
        values.null_count or not pc.all(pc.is_finite(values), min_count=0).as_py()
    ):
        raise SinkError(
            f"The column {name!r} has vectors with NaN, infinity or nulls, which PostgreSQL vectors cannot hold. "
            "Replace them with numbers in a step, or replace the whole vector with null."
        )
    lengths = np.where(storage.is_valid().to_numpy(zero_copy_only=False), storage.type.list_size, 0)
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(ends, values, mask=storage.is_null())


def as_sent(column: pa.Array) -> pa.Array:
    """Return vectors as bytes, as pgvector sends and receives them: their size, two zeros, big-endian floats.

    >>> as_sent(pa.array([[1.0, -2.0]], pa.list_(pa.float32(), 2)))[0].as_py().hex()
    '000200003f800000c0000000'
    """
    size, rows = column.type.list_size, len(column)
    values = column.values.slice(column.offset * size, rows * size).to_numpy(zero_copy_only=False)
    made = np.empty((rows, 4 + 4 * size), np.uint8)
    made[:, :4] = np.frombuffer(size.to_bytes(2, "big") + b"\0\0", np.uint8)
    made[:, 4:] = values.astype(">f4").view(np.uint8).reshape(rows, 4 * size)
    kind = pa.binary(made.shape[1])
    valid = pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(made)]).cast(pa.binary())
