"""Databases: SQLite, DuckDB and PostgreSQL, read, and written."""
