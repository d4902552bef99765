"""Databases by address: SQLite and DuckDB files, PostgreSQL servers."""
