"""What reading needs of a database, whichever it is."""

from __future__ import annotations

import decimal
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from headrace.annex.databases.addresses import Database
from headrace.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a query's answer: its name and type here, and in SQL what gives its value and its order."""

    name: str
    type: pa.DataType
    value: str
    order: str
    check: str = ""
    """A condition that is true for values that cannot be had exactly."""


class Connection(Protocol):
    """One connection, in one transaction that only reads. Used by one thread at a time."""

    snapshot: str
    """What another connection needs to see the same state of the database; "" if there is no such thing."""

    began: tuple[int, ...]
    """``state()`` as of just before the transaction: what was written in between makes a difference to it."""

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query's answer; ``SourceError`` for one whose values cannot be had exactly."""
        ...

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small answer."""
        ...

    def bounds(self, column: Column) -> tuple[str, str]:
        """Return SQL for the lowest and the highest value to cut between; the ends are open anyway."""
        ...

    def checksum(self, columns: Sequence[Column]) -> str:
        """Return SQL for a checksum of all rows of the answer ``q``, in whatever order they come."""
        ...

    def batches(self, sql: str, columns: Sequence[Column], rows: int) -> Iterator[pa.RecordBatch]:
        """Run a query and yield its rows, at most so many at a time."""
        ...

    def reads_elsewhere(self, query: str) -> bool:
        """Say whether a query reads what ``state`` and ``snapshot`` do not cover, such as other files."""
        ...

    def state(self) -> tuple[int, ...]:
        """Return numbers that change when the database does; always the same where ``snapshot`` is known."""
        ...

    def close(self) -> None:
        """End the transaction and the connection."""
        ...


def unread(database: Database, doing: str, error: BaseException) -> SourceError:
    """Return the error for what a driver raised, without secrets. Raise it ``from None``: its cause may hold some."""
    said = database.words_of(error)
    return SourceError(f"Cannot {doing} {database}: {said}.").showing(said)


def inexact(name: str, kind: str, instead: str) -> SourceError:
    """Return the error for a column whose values cannot be had as they are."""
    return SourceError(f"The query's column {name!r} is of type {kind}, {instead}")


def refuse_twice(columns: Sequence[tuple[str, str]], *, cased: bool) -> None:
    """Refuse two columns, as (name, type), that a database takes for one; ``cased``: "a" is not "A" for it."""
    keys = [name if cased else name.lower() for name, _ in columns]
    for key, (name, kind) in zip(keys, columns, strict=True):
        if keys.count(key) > 1:
            raise inexact(name, kind, "and another column has that name. Give them different names with AS.")


def file_state(path: str, log: str, *, counter: bool = False) -> tuple[int, ...]:
    """Return size and time of change of a database file and its log."""
    found: list[int] = []
    for each in (path, path + log):
        try:
            about = os.stat(each)
            found += [about.st_ino, about.st_size, about.st_mtime_ns if about.st_size else 0]
        except FileNotFoundError:
            found += [0, 0, 0]
    if found[4] == 0:
        found[3] = 0  # an empty log is as good as none
    if counter:
        with open(path, "rb") as file:
            found.append(int.from_bytes(file.read(28)[24:], "big"))
    return tuple(found)


# ----------------------------------------------------------------
# Cuts the answer of a query into ranges of one column, so that each row is in exactly one.


MOST = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def cuts(low: Any, high: Any, count: int) -> list[str]:
    """Return, as SQL, the values between ``low`` and ``high`` at which ``count`` ranges of equal width begin.

    Fewer where two would be the same.

    >>> cuts(0, 100, 4), cuts(1, 2, 10), cuts(5, 5, 3)
    (['25', '50', '75'], ['2'], [])
    """
    if low is None or high is None or low == high:
        return []
    found = dict.fromkeys(_between(low, high, i, count) for i in range(1, count))
    return [_literal(value) for value in found if low < value <= high]


def conditions(column: str, at: Sequence[str]) -> list[str]:
    """Return what holds for the rows of each range. The first and the last are open; nulls are in the first.

    >>> conditions("x", ["5", "7"])
    ['(x < 5 OR x IS NULL)', '(x >= 5 AND x < 7)', '(x >= 7)']
    """
    if not at:
        return [""]
    inner = [f"({column} >= {a} AND {column} < {b})" for a, b in itertools.pairwise(at)]
    return [f"({column} < {at[0]} OR {column} IS NULL)", *inner, f"({column} >= {at[-1]})"]


def number(column: str, at: Sequence[str]) -> str:
    """Return SQL for the number of the range that a row is in.

    >>> number("x", ["5", "7"])
    'CASE WHEN x >= 7 THEN 2 WHEN x >= 5 THEN 1 ELSE 0 END'
    """
    if not at:
        return "0"
    whens = " ".join(f"WHEN {column} >= {at[i]} THEN {i + 1}" for i in reversed(range(len(at))))
    return f"CASE {whens} ELSE 0 END"


def _between(low: Any, high: Any, i: int, count: int) -> Any:
    if isinstance(low, datetime):
        zone = low.tzinfo or UTC
        first, last = ((each.replace(tzinfo=zone) - _EPOCH) // _MICROSECOND for each in (low, high))
        at = (_EPOCH + _step(first, last, i, count) * _MICROSECOND).astimezone(zone)
        return at if low.tzinfo else at.replace(tzinfo=None)
    if isinstance(low, date):
        return date.fromordinal(_step(low.toordinal(), high.toordinal(), i, count))
    if isinstance(low, float):
        return low * (1 - i / count) + high * (i / count)
    if isinstance(low, Decimal):
        with decimal.localcontext(decimal.Context(prec=100)):
            return low + (high - low) * i / count
    return _step(low, high, i, count)


def _step(low: int, high: int, i: int, count: int) -> int:
    return low + -(-(high - low) * i // count)


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        return f"TIMESTAMPTZ '{value.astimezone(UTC).isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, float):
        assert math.isfinite(value)
        return f"CAST({value!r} AS DOUBLE PRECISION)"
    if isinstance(value, Decimal):
        with decimal.localcontext() as context:
            context.prec = 100  # the usual 28 digits are fewer than a database's
            return format(value.quantize(Decimal(1)) if abs(value) > 1 << 20 else round(value, 6), "f")
    return str(value)
