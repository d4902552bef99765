"""Addresses of databases, without what is secret in them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.errors import ArgumentError, nearest

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
