"""Parquet at the level of its bytes: footers, pages, and files that are joined from chunks of others."""
