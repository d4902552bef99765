"""Writing to tables that are folders of files and a log."""
