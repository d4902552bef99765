"""Tables that are folders of files and a log, Delta Lake and Iceberg: how they are opened."""
