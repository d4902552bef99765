"""Numbers against predicted numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.accumulators.base import Array, Metric, Nan
from headrace.accumulators.exact import SCALE, ExactSum, ratio
from headrace.accumulators.moments import Averaged, Moments


class MSE(Averaged):
    """The mean of the squared differences of ``label`` and ``prediction``, weighted by ``weight`` if that is named.

    Each square is rounded once, their sum is exact. ``nan="count"`` leaves rows with null or NaN out. Raises
    ``ArgumentError`` for what is no name; ``BadInput`` in a run for columns that hold no numbers.

    >>> import headrace as hr
    >>> hr.from_items([{"y": 1.0, "p": 3.0}]).evaluate(mse=hr.MSE(label="y", prediction="p"))
    {'mse': 4.0}
    """

    settings = ("label", "prediction", "weight")

    def __init__(self, label: str, prediction: str, *, weight: str | None = None, nan: Nan = "raise") -> None:
        self.label, self.prediction, self.weight = label, prediction, weight
        self._begin([label, prediction, weight], nan)

    def _values(self, arrays: dict[str, Array]) -> Array:
        with np.errstate(all="ignore"):
            return self._difference(arrays) ** 2

    def _difference(self, arrays: dict[str, Array]) -> Array:
        difference: Array = self._numbers(arrays, self.label) - self._numbers(arrays, self.prediction)
        return difference


class MAE(MSE):
    """The mean of the absolute differences of ``label`` and ``prediction``, weighted by ``weight`` if that is named.

    ``nan="count"`` leaves rows with null or NaN out. Raises ``ArgumentError`` for what is no name; ``BadInput`` in a
    run for columns that hold no numbers.

    >>> import headrace as hr
    >>> hr.from_items([{"y": 1.0, "p": 3.0}]).evaluate(mae=hr.MAE(label="y", prediction="p"))
    {'mae': 2.0}
    """

    def _values(self, arrays: dict[str, Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.abs(self._difference(arrays))


class R2(Metric):
    """The coefficient of determination of ``prediction`` for ``label``.

    That is 1 − (squared differences of both) ÷ (squared differences of labels and their mean). ``weight`` names a
    column of weights; ``nan="count"`` leaves rows with null or NaN out. None where all labels are the same. Raises
    ``ArgumentError`` for what is no name; ``BadInput`` in a run for columns that hold no numbers.

    >>> import headrace as hr
    >>> data = hr.from_items([{"y": 1.0, "p": 1.0}, {"y": 3.0, "p": 2.0}])
    >>> data.evaluate(r2=hr.R2(label="y", prediction="p"))
    {'r2': 0.5}
    """

    settings = ("label", "prediction", "weight")

    def __init__(self, label: str, prediction: str, *, weight: str | None = None, nan: Nan = "raise") -> None:
        self.label, self.prediction, self.weight = label, prediction, weight
        self._begin([label, prediction, weight], nan)

    def result(self) -> float | None:
        """Return the coefficient."""
        moments = self._labels
        spread = moments.spread()
        if not spread or moments.infinite:
            return None
        return 1.0 - self._errors.over(1 << SCALE) / ratio(spread, moments.mass << SCALE)

    def _clear(self) -> None:
        self._errors = ExactSum()
        self._labels = Moments()

    def _add(self, arrays: dict[str, Array]) -> None:
        labels, weights = self._numbers(arrays, self.label), self._weights(arrays, self.weight)
        with np.errstate(all="ignore"):
            squares = (labels - self._numbers(arrays, self.prediction)) ** 2
        self._errors.add(squares if weights is None else np.where(weights > 0, squares, 0.0) * weights)
        self._labels.add(labels, weights)

    def _merge(self, other: R2) -> None:
        self._errors.merge(other._errors)
        self._labels.merge(other._labels)

    def _state(self) -> Any:
        return [self._errors.state(), self._labels.state()]

    def _restore(self, state: Any) -> None:
        self._errors, self._labels = ExactSum.from_state(state[0]), Moments.from_state(state[1])

    def _reason(self) -> str:
        if self._labels.infinite:
            return "there are labels beyond ±2⁵⁰⁰, such as infinity"
        return "" if self._labels.spread() else "all labels are the same"
