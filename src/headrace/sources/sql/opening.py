"""Connects to a database by the scheme of its address."""

from __future__ import annotations

from headrace.core.databases.addresses import Database
from headrace.sources.sql.connections import Connection


def opened(database: Database, snapshot: str = "") -> Connection:
    """Connect to a database, at a snapshot that another connection holds, if there is one."""
    if database.scheme == "sqlite":
        from headrace.sources.sql.sqlite import SqliteConnection

        return SqliteConnection(database)
    if database.scheme == "duckdb":
        from headrace.sources.sql.duckdb import DuckdbConnection

        return DuckdbConnection(database)
    from headrace.sources.sql.postgresql import PostgresqlConnection

    return PostgresqlConnection(database, snapshot)
