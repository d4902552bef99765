"""Functions that begin a dataset: ``read_*`` for files, ``from_*`` for what is in memory."""
