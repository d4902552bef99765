"""What reading needs of a database, whichever it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.core.databases.addresses import Database
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


def failed(database: Database, doing: str, error: BaseException) -> SourceError:
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
