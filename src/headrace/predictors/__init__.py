"""Models of other libraries as predictors: one module per library, which is imported only there."""

from __future__ import annotations


def home_of(name: str) -> str | None:
    """Return the module that has a predictor."""
    from headrace.predictors.registry import LIBRARIES

    return next((f"{__name__}.{each.module}" for each in LIBRARIES if each.predictor == name), None)


def names() -> list[str]:
    """Return the names of all predictors."""
    from headrace.predictors.registry import LIBRARIES

    return [each.predictor for each in LIBRARIES]
