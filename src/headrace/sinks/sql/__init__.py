"""Rows into tables of databases: staged as Parquet files, inserted by the driver, one transaction for each shard."""
