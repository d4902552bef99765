"""The rows of a query, read from a database in ranges."""
