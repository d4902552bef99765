"""How well scores put the positive rows before the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.accumulators.base import (
    Array,
    Estimate,
    Metric,
    Nan,
    kind_of,
    precision_recall_curve,
    roc_curve,
)
from headrace.accumulators.scores import Even, Scores
from headrace.errors import ArgumentError, BadInput

_LIMIT = 2_000_000


class _Ranking(Metric):
    settings = ("label", "score", "bins", "range", "limit", "positive", "weight")

    def __init__(
        self,
        label: str,
        score: str,
        *,
        bins: int | None = None,
        range: Sequence[float] = (0.0, 1.0),
        limit: int = _LIMIT,
        positive: Any = None,
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        for name, value in (("bins", bins), ("limit", limit)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"{name}={value!r} is not a whole number, 1 or more.")
        low, high = _ends(range)
        self.label, self.score, self.bins, self.range = label, score, bins, (low, high)
        self.limit, self.positive, self.weight = limit, positive, weight
        self._begin([label, score, weight], nan)

    def result(self) -> float | None:
        """Return the area; None if not both classes are there."""
        negative, positive = self._scores.masses()
        if not (negative.any() and positive.any()):
            return None
        value, low, high = self._area(negative, positive)
        return Estimate(value, max(low, 0.0), min(high, 1.0)) if self._scores.binned else value

    def chart(self) -> dict[str, Any] | None:
        """Return points of the curve."""
        negative, positive = self._scores.masses()
        return self._curve(negative, positive) if negative.any() and positive.any() else None

    def _area(self, negative: Array, positive: Array) -> tuple[float, float, float]:
        raise NotImplementedError

    def _curve(self, negative: Array, positive: Array) -> dict[str, Any]:
        raise NotImplementedError

    def _clear(self) -> None:
        even = Even(self.bins, *self.range) if self.bins is not None else None
        self._scores = Scores(self.limit, even, weighted=self.weight is not None)

    def _add(self, arrays: dict[str, Array]) -> None:
        scores = arrays[self.score]
        if scores.dtype.kind not in "fiub" or scores.ndim != 1:
            raise BadInput(f"{self!r}: column {self.score!r} holds no numbers, but {kind_of(scores)}.")
        labels = self._binary(arrays, self.label, self.positive)
        scores = np.ascontiguousarray(scores, np.float64 if self.bins is None else None)
        # What waits to be counted may lie in memory that is used again.
        copied = scores if scores is not arrays[self.score] or self.bins is not None else scores.copy()
        labels = labels if labels is not arrays[self.label] else labels.copy()
        self._scores.add(copied, labels, self._own_weights(arrays))

    def _own_weights(self, arrays: dict[str, Array]) -> Array | None:
        weights = self._weights(arrays, self.weight)
        return weights.copy() if weights is not None else None

    def _merge(self, other: _Ranking) -> None:
        self._scores.merge(other._scores)

    def _state(self) -> Any:
        return self._scores.state()

    def _restore(self, state: Any) -> None:
        self._scores.restore(state)

    def _reason(self) -> str:
        negative, positive = self._scores.masses()
        if negative.any() and positive.any():
            return ""
        if not (negative.any() or positive.any()):
            return "no rows"
        return f"all rows are {'positive' if positive.any() else 'negative'}: there is nothing to rank"


class AUROC(_Ranking):
    """The area under the ROC curve: how often a positive row has a higher score than a negative one; ties count half.

    Parameters
    ----------
    label
        A column of labels: 0 and 1, false and true, or anything with ``positive``.
    score
        A column of scores, of any range.
    bins
        Count scores in so many bins of equal width over ``range`` instead of one by one, in little memory; scores
        that share a bin are ties. The result is an ``Estimate``, a float with ``low`` and ``high``: the exact area
        lies between them for sure.
    range
        ``(low, high)``, for ``bins``; what lies beyond falls into the outermost bins.
    limit
        So many distinct scores of each class (with weights, pairs of score and weight) are distinguished, in 5 to 16
        bytes each; beyond, they are binned by their leading digits, to about 0.05 %, and the result is an
        ``Estimate``.
    positive
        The label of the positive class.
    weight
        A column of weights.
    nan
        ``"count"`` leaves rows with null or NaN out, ``"raise"`` ends the run.

    The result is None, with a reason, if all rows are of one class.

    Raises
    ------
    ArgumentError
        What is no name, number or range. ``BadInput`` in a run: labels or scores that are none.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.from_items([{"y": 0, "p": 0.1}, {"y": 1, "p": 0.4}, {"y": 0, "p": 0.4}])
    >>> data.evaluate(auc=hr.AUROC(label="y", score="p"))
    {'auc': 0.75}
    """

    def _area(self, negative: Array, positive: Array) -> tuple[float, float, float]:
        below = np.cumsum(negative) - negative
        if self.weight is None:
            pairs = int(negative.sum()) * int(positive.sum())
            if pairs >= 1 << 61:
                negative, positive, below = (each.astype(object) for each in (negative, positive, below))
            twice, tied = int((positive * (2 * below + negative)).sum()), int((positive * negative).sum())
            return twice / (2 * pairs), (twice - tied) / (2 * pairs), (twice + tied) / (2 * pairs)
        total = math.fsum(negative) * math.fsum(positive)
        ahead, half = math.fsum(positive * (below + negative / 2)), math.fsum(positive * negative) / 2
        return ahead / total, (ahead - half) / total, (ahead + half) / total

    def _curve(self, negative: Array, positive: Array) -> dict[str, Any]:
        return roc_curve(negative, positive)


class AveragePrecision(_Ranking):
    """The area under the curve of precision over recall, as the sum over distinct scores that scikit-learn takes.

    ``label``, ``score``, ``bins``, ``range``, ``limit``, ``positive``, ``weight`` and ``nan`` as in ``AUROC``; None
    where all rows are of one class. Raises ``ArgumentError`` for what is no name, number or range; ``BadInput`` in
    a run for labels or scores that are none.

    >>> import headrace as hr
    >>> data = hr.from_items([{"y": 0, "p": 0.1}, {"y": 1, "p": 0.4}, {"y": 0, "p": 0.4}])
    >>> data.evaluate(ap=hr.AveragePrecision(label="y", score="p"))
    {'ap': 0.5}
    """

    def _area(self, negative: Array, positive: Array) -> tuple[float, float, float]:
        negative, positive = (each[::-1].astype(np.float64) for each in (negative, positive))
        there = positive > 0
        right, wrong = np.cumsum(positive)[there], np.cumsum(negative)[there]
        here, others = positive[there], negative[there]
        total = float(right[-1])
        value = math.fsum(here * right / (right + wrong)) / total
        # In a bin the order is not known. At best all positive rows come first and together; at worst they come last,
        # one by one, each with the least precision that it can have. Weights may be split up at will, so there a
        # bin's worst is its first bit of weight for all of it.
        before = wrong - others
        best = math.fsum(here * right / (right + before)) / total
        if self.weight is None:
            worst = (
                math.fsum(here - wrong * (_harmonic(right + wrong) - _harmonic(right - here + wrong))) / total
            )
        else:
            start = right - here
            worst = (
                math.fsum(here * np.divide(start, start + wrong, where=start + wrong > 0, out=here * 0))
                / total
            )
        return value, worst, best

    def _curve(self, negative: Array, positive: Array) -> dict[str, Any]:
        return precision_recall_curve(negative, positive)


def _harmonic(counts: Array) -> Array:
    """Return the harmonic numbers of whole numbers, less Euler's constant, to about 1e-12 (for 0: that exactly)."""
    some = np.maximum(counts, 1.0) + 16.0
    high = np.log(some) + 1 / (2 * some) - 1 / (12 * some**2) + 1 / (120 * some**4)
    for i in range(16):
        high = high - 1 / (some - i)
    return np.where(counts > 0, high, -np.euler_gamma)


def _ends(given: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = (float(each) for each in given)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ArgumentError(
            f"range={given!r} is not (low, high), two finite numbers of which the first is smaller."
        )
    return low, high
