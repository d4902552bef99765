"""Observers: they watch a run and never decide anything.

``with_options(observers=[hr.observers.Log("runs.jsonl"), hr.observers.Prometheus(port=9100)])`` has some that are
ready to use; ``headrace.core.ports.Observer`` says what one of your own needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.observers.log import Log
    from headrace.observers.prometheus import Prometheus

__all__ = ["Log", "Prometheus"]


def __getattr__(name: str) -> Any:
    """Import an observer when it is first used: few runs need one."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(
            f"module 'headrace.observers' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(import_module(f"headrace.observers.{name.lower()}"), name)


def __dir__() -> list[str]:
    return __all__
