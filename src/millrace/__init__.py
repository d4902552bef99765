"""Offline batch inference: a dataset through a model, fast, and safe to kill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.version import __version__

if TYPE_CHECKING:
    from millrace import errors
    from millrace.dataset import Dataset
    from millrace.io import (
        from_arrow,
        from_items,
        from_numpy,
        from_pandas,
        range,
        read_binary_files,
        read_csv,
        read_json,
        read_parquet,
    )
    from millrace.options import RunOptions
    from millrace.result import Result
    from millrace.strategies import ActorPoolStrategy, TaskPoolStrategy

__all__ = [
    "ActorPoolStrategy",
    "Dataset",
    "Result",
    "RunOptions",
    "TaskPoolStrategy",
    "__version__",
    "errors",
    "from_arrow",
    "from_items",
    "from_numpy",
    "from_pandas",
    "range",
    "read_binary_files",
    "read_csv",
    "read_json",
    "read_parquet",
]

_HOMES = {
    "millrace.dataset": ("Dataset",),
    "millrace.io": tuple(name for name in __all__ if name.startswith(("from_", "read_", "range"))),
    "millrace.options": ("RunOptions",),
    "millrace.result": ("Result",),
    "millrace.strategies": ("ActorPoolStrategy", "TaskPoolStrategy"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a worker needs few of them, and start-up is imports."""
    import importlib

    if name == "errors":
        return importlib.import_module("millrace.errors")
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
