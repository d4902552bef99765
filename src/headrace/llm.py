"""Language models in batch: models behind endpoints or in the worker, asked row by row by ``Dataset.prompt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.annex.llm.endpoint import Endpoint
    from headrace.annex.llm.engines import VLLM, SGLang
    from headrace.annex.llm.judge import Judge
    from headrace.annex.llm.spending import Budget

__all__ = ["VLLM", "Budget", "Endpoint", "Judge", "SGLang"]

_HOMES = {
    "Budget": "spending",
    "Endpoint": "endpoint",
    "Judge": "judge",
    "SGLang": "engines",
    "VLLM": "engines",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"headrace.annex.llm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'headrace.llm' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
