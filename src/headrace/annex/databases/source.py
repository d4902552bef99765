"""``read_sql``: the answer of a query as a source; each range of rows is a split, and always has the same rows."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.annex.databases import connections
from headrace.annex.databases.connections import Column, Connection, Database, opened, parse, quoted_name
from headrace.core.arguments import known_arguments
from headrace.core.source_ports import Bad, Location, Source
from headrace.core.table_changes import Seen
from headrace.core.work import Split
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, InputChanged, SourceError, unknown_column
from headrace.plan import ray_arguments

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = ["read_sql"]

_ROWS = 65_536  # of a range, about, if nobody says how many there are
_WIDTH = 32  # bytes of a value, about, where its type does not say


@dataclass(frozen=True, slots=True)
class Answer:
    """What the database said when it was first asked: columns, ranges, and for each how many rows with which sum."""

    columns: tuple[Column, ...]
    conditions: tuple[str, ...]
    counts: tuple[int, ...]
    sums: tuple[str, ...]
    snapshot: str
    state: tuple[int, ...] | None
    """None where the query reads more than the database, of which nothing tells whether it has changed."""


class SqlSource(Source):
    """Reads the answer of a query. It is asked how many rows each range has, and a checksum of them, at first.

    Rows come in the order of ``partition_column`` and then of all columns, so that the same rows have the same
    numbers whenever they are read.
    """

    one_state = True

    def __init__(
        self,
        query: str,
        database: Database,
        *,
        partition_column: str | None = None,
        partitions: int | None = None,
        checksum: bool = True,
    ) -> None:
        self._query = query.strip().rstrip(";").rstrip()
        self._database = database
        self._by = partition_column
        self._partitions = partitions
        self._checksum = checksum
        self._answer: Answer | None = None
        self._held: list[Any] = []  # what holds the snapshot while this object lives
        self._answers: tuple[tuple[str, int, int], ...] | None = (
            None  # that runs have read, the present one last
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": []}

    # ------------------------------------------------------------ what the database says

    def _answered(self) -> Answer:
        if self._answer is None:
            connection = opened(self._database)
            try:
                self._answer = self._ask(connection)
            except BaseException:
                connection.close()
                raise
            if connection.snapshot:
                self._held.append(connection)
                weakref.finalize(self, connection.close)
            else:
                connection.close()
        return self._answer

    def _ask(self, connection: Connection) -> Answer:
        columns = connection.columns(self._query)
        cuts: list[str] = []
        by = None
        if self._by is not None:
            by = self._partition_column(columns)
            low, high = connection.bounds(by)
            sql = f"SELECT {low} AS low, {high} AS high, count(*) AS n FROM ({self._query}\n) AS q"
            least, most, rows = connection.rows(sql)[0]
            count = self._partitions or max(1, -(-int(rows) // _ROWS))
            cuts = connections.cuts(least, most, min(count, connections.MOST))
        name = f"q.{quoted_name(by.name)}" if by is not None else ""
        totals = self._totals(connection, columns, connections.number(name, cuts))
        return Answer(
            tuple(columns),
            tuple(connections.conditions(name, cuts)),
            tuple(totals.get(i, (0, ""))[0] for i in range(len(cuts) + 1)),
            tuple(totals.get(i, (0, ""))[1] for i in range(len(cuts) + 1)),
            connection.snapshot,
            None if connection.reads_elsewhere(self._query) else connection.began,
        )

    def _partition_column(self, columns: Sequence[Column]) -> Column:
        import pyarrow.types as pt

        names = [column.name for column in columns]
        if self._by not in names:
            raise unknown_column("partition_column", str(self._by), names)
        found = columns[names.index(self._by)]
        tests = (pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_date, pt.is_timestamp, pt.is_null)
        if not any(test(found.type) for test in tests):
            raise ArgumentError(
                f"partition_column={self._by!r} is of type {found.type}: ranges are made of numbers, dates and "
                "times. "
                "Choose another column, or add one to the query, such as a number made from this one."
            )
        return found

    def _totals(
        self, connection: Connection, columns: Sequence[Column], number: str, where: str = ""
    ) -> dict[int, tuple[int, str]]:
        """Return, by the number of the range, its rows and their checksum; refuse what cannot be had exactly."""
        summed = connection.checksum(columns) if self._checksum else "''"
        checks = [column for column in columns if column.check]
        asked = "".join(
            f", count(CASE WHEN {column.check} THEN 1 END) AS c{i}" for i, column in enumerate(checks)
        )
        sql = (
            f"SELECT {number} AS r, count(*) AS n, {summed} AS s{asked} "
            f"FROM ({self._query}\n) AS q{where} GROUP BY 1"
        )
        found: dict[int, tuple[int, str]] = {}
        for range_number, rows, total, *bad in connection.rows(sql):
            for column, count in zip(checks, bad, strict=True):
                if count:
                    raise SourceError(
                        f"The query's column {column.name!r} holds {count:,} values that {column.type} cannot hold, "
                        "such as infinity, a number or a time out of its range, or an array of arrays. Change them "
                        "in the query, leave out their rows, or cast the column to text."
                    )
            found[int(range_number)] = int(rows), str(total or "")
        return found

    # ------------------------------------------------------------ the port

    def describe(self) -> dict[str, Any]:
        """Return the query, the database without what is secret, and how many rows it gives with which checksum."""
        return {
            "kind": "sql",
            "path": str(self._database),
            "query": self._query,
            "partition_column": self._by,
            "partitions": self._partitions,
            **(self.position() if self._answers is None else {}),
        }

    def position(self) -> dict[str, Any]:
        """Return how many rows there are, with which checksum."""
        answer = self._answered()
        digest = hashlib.sha256(repr((answer.conditions, answer.counts, answer.sums)).encode()).hexdigest()
        return {"rows": sum(answer.counts), "checksum of the rows": digest[:32]}

    def for_further_runs(self, *, keyed: bool) -> SqlSource:
        """Return this source, asked anew, whose rows are known by keys; refuse it without."""
        if not keyed:
            raise ArgumentError(
                "incremental=True for a query: a database does not say which of its rows are new. Reading only rows "
                "above the last value would miss rows that others write late. Name the columns that identify a row, "
                "such as key='id': then rows with new keys are processed."
            )
        if not self._checksum:
            raise ArgumentError(
                "incremental=True with read_sql(checksum=False): without checksums, it would not be noticed if rows "
                "were added while as many were deleted. Leave checksum=False out."
            )
        copy = self._with(())
        copy._answer, copy._held = None, []
        return copy

    def since(self, seen: Seen) -> SqlSource:
        """Return this source with the answers that runs have read; the last one may be another by now."""
        return self._with((*seen.files[:-1], self._present()))

    def _with(self, answers: tuple[tuple[str, int, int], ...]) -> SqlSource:
        copy: SqlSource = object.__new__(type(self))
        copy.__dict__ = {**self.__dict__, "_held": [self], "_answers": answers}
        return copy

    def _present(self) -> tuple[str, int, int]:
        position = self.position()
        mark = int(str(position["checksum of the rows"])[:15], 16)
        return f"the query in {self._database}", int(position["rows"]), mark

    def files(self) -> list[tuple[str, int, int]]:
        """Return the answers that runs have read, each as a file; none where runs do not add to one output."""
        if self._answers is None:
            return []
        return list(self._answers or (self._present(),))

    def files_of(self, split: Split) -> range:
        """Return the number of the answer that a split is of."""
        return range(0) if self._answers is None else range(split.file, split.file + 1)

    def pinned(self, paths: Sequence[str]) -> SqlSource:
        """Return this source with so many answers, of which the present one is the last."""
        if self._answers is None:
            return self
        before = self.files()[: len(paths) - 1] if len(paths) <= len(self.files()) else self.files()
        return self._with((*before, *[self._present()] * (len(paths) - len(before))))

    def splits_from(self, file: int) -> list[Split] | None:
        """List the ranges of the present answer, if it has that number or a later one."""
        if self._answers is None:
            return None
        return self.splits() if file < len(self.files()) else []

    def schema(self) -> pa.Schema:
        """Return the columns of the answer."""
        import pyarrow as pa

        return pa.schema([(column.name, column.type) for column in self._answered().columns])

    def splits(self) -> list[Split]:
        """Return a split for each range that has rows."""
        answer = self._answered()
        width = sum(_width(column.type) for column in answer.columns) or 1
        found, first, number = [], 0, max(0, len(self._answers or ()) - 1)
        for i, rows in enumerate(answer.counts):
            if rows:
                found.append(Split(number, i, i + 1, rows, rows * width, first))
            first += rows
        return found

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one range, in a connection of its own."""
        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import select

        answer = self._answered()
        names = self.schema().names if columns is None else select(self.schema(), columns).names
        by_name = {column.name: column for column in answer.columns}
        chosen = [by_name[name] for name in names]
        expected, rows = answer.counts[split.start], 0
        connection = opened(self._database, answer.snapshot)
        try:
            self._check(connection, answer, split.start)
            if not chosen:
                for start in range(0, expected, batch_rows):
                    yield empty_columns(min(batch_rows, expected - start))
                return
            for batch in connection.batches(self._select(answer, split.start, chosen), chosen, batch_rows):
                rows += batch.num_rows
                yield batch
            if rows != expected:
                raise self._changed(split.start, f"it had {expected:,} rows, and has {rows:,}")
            if answer.state is None:  # no transaction holds what is read
                self._check(connection, answer, split.start)
        finally:
            connection.close()

    def _select(self, answer: Answer, number: int, columns: Sequence[Column]) -> str:
        values = ", ".join(f"{column.value} AS {quoted_name(column.name)}" for column in columns)
        ordered = sorted(answer.columns, key=lambda column: column.name != self._by)
        order = ", ".join(column.order for column in ordered)
        condition = answer.conditions[number]
        where = f" WHERE {condition}" if condition else ""
        return f"SELECT {values} FROM ({self._query}\n) AS q{where} ORDER BY {order}"

    def _check(self, connection: Connection, answer: Answer, number: int) -> None:
        """Compare rows and checksum of a range, if the database has changed at all."""
        if connection.state() == answer.state:
            return
        condition = answer.conditions[number]
        where = f" WHERE {condition}" if condition else ""
        now = self._totals(connection, answer.columns, str(number), where).get(number, (0, ""))
        if now[0] != answer.counts[number]:
            raise self._changed(number, f"it had {answer.counts[number]:,} rows, and has {now[0]:,}")
        if now[1] != answer.sums[number]:
            raise self._changed(number, "its rows have another checksum")

    def _changed(self, number: int, how: str) -> InputChanged:
        part = f" where {self._answered().conditions[number]}" if self._answered().conditions[number] else ""
        return InputChanged(
            f"The query's answer{part} in {self._database} changed since the run was planned: {how}. Finished work "
            "is kept. Bring the old rows back and run again, or make the output again with mode='overwrite'; a "
            "condition in the query, such as on a date, keeps new rows out."
        )

    def locate(self, split: Split, row: int) -> Location:
        """Name the row by its number in the ordered answer."""
        return Location(f"the query in {self._database}", split.first + row)


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _WIDTH


# ---------------------------------------------------------------- the reader


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
