"""Functions that begin a dataset: ``read_*`` for files, ``from_*`` for what is in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from headrace.core.door import Table

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset

_MODULES = {
    "readers.parquet": "read_parquet",
    "readers.files": "read_binary_files read_csv read_images read_json read_numpy read_rejected read_text",
    "readers.from_memory": (
        "from_arrow from_daft from_huggingface from_items from_numpy from_pandas from_polars from_spark "
        "from_torch range range_tensor"
    ),
    "annex.formats.readers": "read_avro read_orc read_tfrecords read_webdataset",
    "annex.media.readers": "read_audio read_video",
    "annex.databases.source": "read_sql",
    "annex.lakes.readers": "read_delta read_iceberg read_lance",
}
FUNCTIONS = {name: f"headrace.{module}" for module, names in _MODULES.items() for name in names.split()}
"""The functions that are ours, and the module of each."""

SOURCES: Table[Callable[..., Any]] = Table(
    "sources",
    {
        name.removeprefix("read_"): f"{module}:{name}"
        for name, module in FUNCTIONS.items()
        if name.startswith("read_")
    },
)
"""What ``hr.read_<name>`` calls: it returns a dataset, or a source."""


def function(called: str) -> Callable[..., Dataset] | None:
    """Return a function that begins a dataset, such as ``read_csv``; None if there is none."""
    if called in FUNCTIONS:
        return cast("Callable[..., Dataset]", getattr(import_module(FUNCTIONS[called]), called))
    name = called.removeprefix("read_")
    made = SOURCES.get(name) if called.startswith("read_") else None
    if made is None:
        return None

    @functools.wraps(made, updated=())
    def read(*args: Any, **kwargs: Any) -> Dataset:
        from headrace.dataset.dataset import Dataset, is_source

        found = made(*args, **kwargs)
        if isinstance(found, Dataset):
            return found
        if not is_source(found):
            raise SOURCES.refuse(name, found, "a Source or a Dataset")
        return Dataset.from_source(found)

    read.__module__, read.__name__, read.__qualname__ = "headrace", called, called
    return read
