"""``read_sql``: a dataset of the rows that a query gives."""

from __future__ import annotations

from headrace.annex.databases.addresses import parse
from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments

__all__ = ["read_sql"]


@known_arguments(also=ray_arguments.READ_SQL)
def read_sql(
    query: str,
    uri: str,
    *,
    partition_column: str | None = None,
    partitions: int | None = None,
    checksum: bool = True,
) -> Dataset:
    """Read the rows that a query gives, from SQLite, DuckDB or PostgreSQL.

    The query is run once when the dataset is first looked at, to learn its types, how many rows it gives, and a
    checksum of them: a run that goes on after a kill must find the same rows, or it is refused. All workers see one
    state of the database: in PostgreSQL the snapshot of one transaction, which stays open while the dataset is in
    use; of a file, each range is checked again if the file has changed.

    Rows come in the order of ``partition_column``, and then of all columns from the first to the last; an ``ORDER
    BY`` of the query decides only what its ``LIMIT`` takes. So begin a big query with a column that has an index.

    Parameters
    ----------
    query
        One ``SELECT``. It is run in a transaction that only reads.
    uri
        ``sqlite:///file``, ``duckdb:///file`` (a fourth slash begins an absolute path), or
        ``postgresql://user:password@host:port/name``; or ``env:NAME``, for an environment variable that holds such
        an address. User and password never stand in files, reports and messages; with ``env:`` they are not sent
        to the workers either, which look into their own environment.
    partition_column
        A column of the query, of integers, floats, decimals, dates or timestamps: the answer is read in ranges of it,
        at the same time. The ends of the ranges are open, nulls are in the first one and NaN in the last: each row
        is in exactly one. An index on it helps. None: the answer is one range, read by one worker.
    partitions
        How many ranges, of equal width, up to 1,000. None: about one for each 65,536 rows.
    checksum
        False compares only the number of rows of each range, which costs less in PostgreSQL, and does not notice
        rows that were changed in place between a kill and the next run.

    Raises
    ------
    ArgumentError, UnknownColumn
        The address or an option makes no sense; ``MissingLibrary``: the driver is not installed.
    SourceError
        The database cannot be reached, the query fails, or a column holds what has no exact equal here: several types
        in a column of SQLite, ``timetz``, infinite times, more than 76 digits. The message names the column.
    InputChanged
        The query gives other rows than when the run was planned. A run that goes on raises ``PlanChanged``.

    Examples
    --------
    >>> import sqlite3, tempfile, headrace as hr
    >>> file = f"{tempfile.mkdtemp()}/shop.db"
    >>> with sqlite3.connect(file) as shop:
    ...     _ = shop.execute("CREATE TABLE sales (id INTEGER, price REAL)")
    ...     _ = shop.executemany("INSERT INTO sales VALUES (?, ?)", [(1, 9.5), (2, None), (3, 4.25)])
    >>> shop.close()
    >>> hr.read_sql("SELECT id, price FROM sales", f"sqlite:///{file}", partition_column="id").take_all()
    [{'id': 1, 'price': 9.5}, {'id': 2, 'price': None}, {'id': 3, 'price': 4.25}]
    """
    from headrace.annex.databases.source import SqlSource

    if not isinstance(query, str) or not query.strip().strip(";"):
        raise ArgumentError("read_sql: query= is one SELECT, as a text.")
    if partitions is not None and (
        isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 1_000
    ):
        raise ArgumentError(f"read_sql: partitions= is a number from 1 to 1,000, not {partitions!r}.")
    if partitions is not None and partitions > 1 and partition_column is None:
        raise ArgumentError(
            "read_sql: partitions= needs partition_column=, the column whose ranges are read at the same time."
        )
    source = SqlSource(
        query,
        parse(uri, "read_sql"),
        partition_column=partition_column,
        partitions=partitions,
        checksum=checksum,
    )
    return Dataset.from_source(source)
