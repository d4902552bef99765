"""Ray's ``ray.air.checkpoint``: what predictors of one's own are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.compat.air.preprocessing import preparing_method
from headrace.errors import ArgumentError

__all__ = ["Checkpoint"]


class Checkpoint:
    """Values by name, for the ``from_checkpoint`` of a predictor of one's own, and what prepares its data.

    >>> checkpoint = Checkpoint.from_dict({"factor": 2})
    >>> checkpoint.to_dict()["factor"], checkpoint.get_preprocessor()
    (2, None)
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise ArgumentError(
                f"Checkpoint.from_dict takes a dict of values by name, not {type(values).__name__}."
            )
        self._values = dict(values)
        self._preprocessor = self._values.pop("_preprocessor", None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """Hold values."""
        return cls(data)

    def to_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(self._values)

    def get_preprocessor(self) -> Any:
        """Return what prepares the data, or None."""
        return self._preprocessor

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Let another prepare the data, or none."""
        if preprocessor is not None:
            preparing_method(preprocessor)
        self._preprocessor = preprocessor

    def __repr__(self) -> str:
        return f"Checkpoint({', '.join(self._values)})"
