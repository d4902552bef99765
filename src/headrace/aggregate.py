"""What ``Dataset.groupby(…).aggregate(…)`` and ``Dataset.aggregate(…)`` count; the names are those of Ray Data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.annex.queries.aggregates import (
        AbsMax,
        AsList,
        Count,
        CountDistinct,
        Max,
        Mean,
        Min,
        Quantile,
        Std,
        Sum,
        Unique,
    )

__all__ = [
    "AbsMax",
    "AsList",
    "Count",
    "CountDistinct",
    "Max",
    "Mean",
    "Min",
    "Quantile",
    "Std",
    "Sum",
    "Unique",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in __all__:
        import importlib

        return getattr(importlib.import_module("headrace.annex.queries.aggregates"), name)
    raise AttributeError(
        f"module 'headrace.aggregate' has no attribute {name!r}; it has {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return __all__
