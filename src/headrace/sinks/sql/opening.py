"""Begins a transaction by the scheme of a database's address."""

from __future__ import annotations

from headrace.core.databases.addresses import Database
from headrace.sinks.sql.transactions import Transaction


def begun(database: Database) -> Transaction:
    """Connect to a database and begin a transaction."""
    if database.scheme == "sqlite":
        from headrace.sinks.sql.sqlite import SqliteTransaction

        return SqliteTransaction(database)
    if database.scheme == "duckdb":
        from headrace.sinks.sql.duckdb import DuckdbTransaction

        return DuckdbTransaction(database)
    from headrace.sinks.sql.postgresql import PostgresqlTransaction

    return PostgresqlTransaction(database)
