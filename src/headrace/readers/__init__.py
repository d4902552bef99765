"""Functions that begin a dataset: ``read_*`` for files, ``from_*`` for what is in memory."""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "parquet",
    "files",
    "from_memory",
    "from_libraries",
    "samples",
    "media",
    "databases",
    "tables",
    "tables_of_files",
)
"""The modules of readers: what is in the ``__all__`` of one is a public name of Headrace."""


def home_of(name: str) -> str | None:
    """Return the module that has a reader."""
    homes = (f"{__name__}.{module}" for module in MODULES)
    return next((home for home in homes if name in import_module(home).__all__), None)


def names() -> list[str]:
    """Return the names of all readers."""
    return [name for module in MODULES for name in import_module(f"{__name__}.{module}").__all__]
