"""Addresses of databases, without what is secret in them; what reading needs of a database, and how to connect."""

from __future__ import annotations

import contextlib
import decimal
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.core.door import loaded
from headrace.errors import ArgumentError, SourceError, nearest

if TYPE_CHECKING:
    import pyarrow as pa


Scheme = Literal["sqlite", "duckdb", "postgresql"]
_SCHEMES: dict[str, Scheme] = {
    "sqlite": "sqlite",
    "duckdb": "duckdb",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}
_OTHERS = (
    "have it export a query as Parquet to a bucket, which read_parquet reads; or fetch a small answer as Arrow by "
    "its own ADBC driver, and give it to from_arrow.",
    "have it load Parquet from a bucket, which write_parquet writes: wait for _SUCCESS there.",
)
_SECRET = re.compile(r"passw|secret|token|key", re.IGNORECASE)
_SHORT = 3  # characters: to take out what is shorter would take out half of a message


@dataclass(frozen=True, slots=True)
class Database:
    """A database. ``str()`` is its address without user, password and options; the rest is kept to connect with.

    Of ``env:NAME`` only the name of the variable is kept: each process looks it up in its own environment.
    """

    scheme: Scheme
    address: str
    _uri: str = field(repr=False)

    def __str__(self) -> str:
        return self.address

    @property
    def path(self) -> str:
        """The file of an SQLite or DuckDB database."""
        return _path_of(self.uri)

    @property
    def uri(self) -> str:
        """What to connect with. It may hold a password: never show it."""
        return _looked_up(self._uri)

    def redacted(self, text: str) -> str:
        """Return a message of a driver without what is secret in the address."""
        parts = urlsplit(self.uri)
        given = [parts.password or "", *(v for name, v in parse_qsl(parts.query) if _SECRET.search(name))]
        secrets = {form for each in given if each for form in (each, unquote(each))}
        if any(len(secret) < _SHORT and secret in text for secret in secrets):
            return "(its text is hidden: it may hold the password)"
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "…")
        return text

    def words_of(self, error: BaseException) -> str:
        """Return what a driver raised, as a part of a sentence, without what is secret in the address."""
        return " ".join(self.redacted(str(error)).split()).rstrip(".")


def quoted_name(name: str) -> str:
    """Return the name of a column as SQL has it.

    >>> print(quoted_name('a "b'))
    "a ""b"
    """
    return '"' + name.replace('"', '""') + '"'


def parse(uri: str, verb: str) -> Database:
    """Return the database of an address.

    >>> str(parse("postgresql://ada:secret@db.example.org:5433/shop?sslmode=require", "read_sql"))
    'postgresql://db.example.org:5433/shop'
    >>> parse("mysql://db/shop", "read_sql")
    Traceback (most recent call last):
    headrace.errors.ArgumentError: read_sql: no database is known for mysql://. Known are sqlite:///file, ...
    """
    if not isinstance(uri, str):
        raise ArgumentError(
            f"{verb}: uri= is the address of a database as a text, not a {type(uri).__name__}."
        )
    given = _looked_up(uri)
    scheme, mark, _ = given.partition("://")
    where = "uri=" if given == uri else f"the environment variable {uri[4:]!r}"
    if not mark or not re.fullmatch(r"[A-Za-z0-9+_.-]{1,30}", scheme):
        raise ArgumentError(
            f"{verb}: {where} is not the address of a database. It looks like sqlite:///file, duckdb:///file or "
            "postgresql://host/name; or env:NAME for an environment variable that holds such an address."
        )
    known = _SCHEMES.get(scheme.lower())
    if known is None:
        raise ArgumentError(
            f"{verb}: no database is known for {scheme}://. Known are sqlite:///file, duckdb:///file and "
            f"postgresql://host/name.{nearest(scheme, list(_SCHEMES))} With another, such as Snowflake, BigQuery or "
            f"a server of Flight SQL, {_OTHERS[verb == 'write_sql']}"
        )
    if known == "postgresql":
        return Database(known, _server(given), uri)
    if given == uri:  # a relative path is one of the folder in which the program works now
        uri = f"{known}:///{os.path.abspath(_path_of(given, verb))}"
    return Database(known, f"{known}:///{os.path.abspath(_path_of(given, verb))}", uri)


def _looked_up(uri: str) -> str:
    if not uri.startswith("env:"):
        return uri
    value = os.environ.get(uri[4:], "")
    if not value:
        raise ArgumentError(
            f"The environment variable {uri[4:]!r} is not set where a database's address is taken from it. Set it "
            "for the program and all its workers."
        )
    return value


def _server(uri: str) -> str:
    try:
        parts = urlsplit(uri)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise ArgumentError(
            "The address of the database cannot be understood: it is postgresql://user:password@host:port/name, "
            "where special characters in the password are written as %40 and the like."
        ) from None
    if "@" in parts.path + parts.query or parts.fragment or parts.netloc.count("@") > 1:
        raise ArgumentError(
            "The address of the database has an @ or a # where none belongs. If they, or /, ? or :, are of the user "
            "or the password, write them as %40, %23, %2F, %3F and %3A."
        )
    host = parts.hostname or next((v for name, v in parse_qsl(parts.query) if name == "host"), "")
    return f"postgresql://{host}{port}{parts.path}"


def _path_of(uri: str, verb: str = "") -> str:
    scheme, _, rest = uri.partition("://")
    if not rest.startswith("/") or rest == "/" or rest.startswith("/:memory:") or "?" in rest:
        raise ArgumentError(
            f"{verb}: a database file is given as {scheme}:///relative/path or {scheme}:////absolute/path, without "
            "options. Workers are other processes, so a database in memory cannot be used."
        )
    return rest[1:]


# ---------------------------------------------------------------- what reading needs


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
    """One connection, in one transaction that only reads. Used by one thread at a time.

    Subclass it: what has a default here need not be written.
    """

    snapshot: str = ""
    """What another connection needs to see the same state of the database; "" if there is no such thing."""

    began: tuple[int, ...] = ()
    """``state()`` as of just before the transaction: what was written in between makes a difference to it."""

    database: Database
    errors: tuple[type[Exception], ...]
    """What its driver raises, and what is raised for values that cannot be had."""

    @contextlib.contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Raise ``SourceError`` for ``errors``, without secrets: their causes may hold some."""
        try:
            yield
        except self.errors as error:
            said = self.database.words_of(error)
            raise SourceError(f"Cannot {doing} {self.database}: {said}.").showing(said) from None

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
        """Say whether a query reads what ``state`` and ``snapshot`` do not cover, such as other files.

        Default: it does not.
        """
        return False

    def state(self) -> tuple[int, ...]:
        """Return numbers that change when the database does. Default: the same, as ``snapshot`` is known."""
        return ()

    def close(self) -> None:
        """End the transaction and the connection."""
        ...


def file_of(database: Database) -> str:
    """Return the file of a database that is read; raises ``SourceError`` if there is none."""
    if not os.path.exists(database.path):
        raise SourceError(f"Cannot read {database}: there is no such file.")
    return database.path


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


def opened(database: Database, snapshot: str = "") -> Connection:
    """Connect to a database, at a snapshot that another connection holds, if there is one."""
    found: Connection = adapter(database, "Connection")(database, snapshot)
    return found


def adapter(database: Database, what: str) -> Any:
    """Return the class with which a kind of database is read or written: its ``Connection`` or ``Transaction``."""
    return loaded(f"headrace.annex.databases.{database.scheme}:{database.scheme.capitalize()}{what}")


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
