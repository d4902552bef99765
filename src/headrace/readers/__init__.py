"""Functions that begin a dataset: ``read_*`` for files, ``from_*`` for what is in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.core.door import Table

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset

_MODULES = {
    "parquet": "parquet",
    "files": "binary_files csv images json rejected text",
    "samples": "numpy tfrecords webdataset",
    "media": "audio pdf video",
    "databases": "sql",
    "tables": "delta iceberg lance",
    "tables_of_files": "avro orc",
}
SOURCES: Table[Callable[..., Any]] = Table(
    "sources",
    {
        name: f"{__name__}.{module}:read_{name}"
        for module, names in _MODULES.items()
        for name in names.split()
    },
)
"""What ``hr.read_<name>`` calls: it returns a dataset, or a source."""


def reader(name: str) -> Callable[..., Dataset] | None:
    """Return the function ``read_<name>``, None if there is none."""
    made = SOURCES.get(name)
    if made is None or name in SOURCES.ours:
        return made

    @functools.wraps(made, updated=())
    def read(*args: Any, **kwargs: Any) -> Dataset:
        from headrace.dataset.dataset import Dataset, is_source

        found = made(*args, **kwargs)
        if isinstance(found, Dataset):
            return found
        if not is_source(found):
            raise SOURCES.refuse(name, found, "a Source or a Dataset")
        return Dataset.from_source(found)

    read.__module__, read.__name__, read.__qualname__ = "headrace", f"read_{name}", f"read_{name}"
    return read
