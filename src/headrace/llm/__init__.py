"""Language models in batch: models behind endpoints, asked row by row by ``Dataset.prompt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.llm.endpoint import Endpoint

__all__ = ["Endpoint"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    import importlib

    if name == "Endpoint":
        return importlib.import_module("headrace.llm.endpoint").Endpoint
    raise AttributeError(f"module 'headrace.llm' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
