"""Tables of Delta Lake, Iceberg and Lance: read, and written."""
