"""How good probabilities are: log loss, Brier score, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.accumulators.base import Array, Metric, Nan
from headrace.accumulators.exact import SCALE, as_float, fixed_by, from_state, ratio, to_state
from headrace.accumulators.moments import Averaged
from headrace.errors import ArgumentError, BadInput


class _Binary(Averaged):
    settings = ("label", "score", "positive", "weight")

    def __init__(
        self,
        label: str,
        score: str,
        *,
        positive: Any = None,
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        self.label, self.score, self.positive, self.weight = label, score, positive, weight
        self._begin([label, score, weight], nan)

    def _probabilities(self, arrays: dict[str, Array]) -> Array:
        scores = self._numbers(arrays, self.score)
        if len(scores) and not (scores.min() >= 0 and scores.max() <= 1):
            raise BadInput(
                f"{self!r}: column {self.score!r} has numbers below 0 or above 1, which are not probabilities. "
                "Logits take a sigmoid first."
            )
        return scores


class LogLoss(_Binary):
    """The mean of −ln of the probability that was given to the label that is true.

    ``score`` names a column of probabilities of the positive class; or, for k classes that are numbered from 0 in
    ``label``, a column of shape (n, k). ``positive`` is the label of the positive class where labels are not 0 and
    1 or true and false. ``weight`` names a column of weights, ``nan="count"`` leaves rows with null or NaN out. As in
    scikit-learn, probabilities come no nearer to 0 and 1 than the precision of their type. Raises ``ArgumentError``
    for what is no name; ``BadInput`` in a run for what is no probability.

    >>> import headrace as hr
    >>> data = hr.from_items([{"y": 1, "p": 0.5}, {"y": 0, "p": 0.5}])
    >>> data.evaluate(loss=hr.LogLoss(label="y", score="p"))
    {'loss': 0.6931471805599453}
    """

    def _values(self, arrays: dict[str, Array]) -> Array:
        given = arrays[self.score]
        if given.ndim == 2:
            chosen = self._of_class(arrays, given)
        else:
            scores = self._probabilities(arrays)
            chosen = np.where(self._binary(arrays, self.label, self.positive), scores, 1.0 - scores)
        least = np.finfo(given.dtype).eps if given.dtype.kind == "f" else np.finfo(np.float64).eps
        return np.asarray(-np.log(np.clip(chosen, least, 1.0 - least)))

    def _of_class(self, arrays: dict[str, Array], given: Array) -> Array:
        labels = arrays[self.label]
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= given.shape[1]:
            raise BadInput(
                f"{self!r}: with {given.shape[1]} probabilities per row, labels are numbers from 0 to "
                f"{given.shape[1] - 1}."
            )
        sums = given.sum(axis=1, dtype=np.float64)
        chosen = given[np.arange(len(given)), labels].astype(np.float64)
        if given.min() < 0 or np.abs(sums - 1).max() > 1e-3:
            raise BadInput(
                f"{self!r}: the rows of column {self.score!r} are not probabilities that add up to 1."
            )
        return np.asarray(chosen / sums)


class BrierScore(_Binary):
    """The mean of the squared differences of the probability and what was true, 1 or 0.

    ``label``, ``score``, ``positive``, ``weight`` and ``nan`` as in ``LogLoss``. Raises ``ArgumentError`` for what
    is no name; ``BadInput`` in a run for what is no probability.

    >>> import headrace as hr
    >>> hr.from_items([{"y": True, "p": 0.5}]).evaluate(brier=hr.BrierScore(label="y", score="p"))
    {'brier': 0.25}
    """

    def _values(self, arrays: dict[str, Array]) -> Array:
        scores = self._probabilities(arrays)
        return np.asarray((scores - self._binary(arrays, self.label, self.positive)) ** 2)


class Calibration(Metric):
    """How far probabilities are from what comes true, in ``bins`` equal parts of 0 to 1.

    The result is ``{"error": …, "bins": […]}``: the expected calibration error (the mean, over rows, of how far the
    mean probability of their bin is from the share of positives in it), and for each bin that has rows ``low``,
    ``high``, ``rows`` (the sum of their weights, with ``weight``), ``score`` (the mean probability) and
    ``positives`` (the share). A bin holds what is above its lower end, up to its upper end; the first one 0, too.
    ``label``, ``score``, ``positive``, ``weight`` and ``nan`` as in ``LogLoss``. Raises ``ArgumentError`` for
    ``bins`` that is no whole number from 1 to 10,000; ``BadInput`` in a run for what is no probability.

    >>> import headrace as hr
    >>> data = hr.from_items([{"y": 1, "p": 0.75}, {"y": 0, "p": 0.75}])
    >>> data.evaluate(calibration=hr.Calibration(label="y", score="p", bins=2))["calibration"]
    {'error': 0.25, 'bins': [{'low': 0.5, 'high': 1.0, 'rows': 2, 'score': 0.75, 'positives': 0.5}]}
    """

    settings = ("label", "score", "bins", "positive", "weight")

    def __init__(
        self,
        label: str,
        score: str,
        *,
        bins: int = 10,
        positive: Any = None,
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        if isinstance(bins, bool) or not isinstance(bins, int) or not 1 <= bins <= 10_000:
            raise ArgumentError(f"bins={bins!r} is not a whole number from 1 to 10,000.")
        self.label, self.score, self.bins, self.positive, self.weight = label, score, bins, positive, weight
        self._rows = _Binary(label, score, positive=positive)
        self._begin([label, score, weight], nan)

    def result(self) -> dict[str, Any] | None:
        """Return the error and the bins."""
        total = sum(mass for mass, _, _ in self._bins.values())
        if not total:
            return None
        bins, error = [], 0
        for at in sorted(self._bins):
            mass, scores, positives = self._bins[at]
            error += abs(scores - positives)
            bins.append(
                {
                    "low": at / self.bins,
                    "high": (at + 1) / self.bins,
                    "rows": mass >> SCALE if self.weight is None else as_float(mass),
                    "score": ratio(scores, mass) if mass else None,
                    "positives": ratio(positives, mass) if mass else None,
                }
            )
        return {"error": ratio(error, total), "bins": bins}

    def chart(self) -> dict[str, Any] | None:
        """Return the bins, if they are few enough to be seen."""
        found = self.result()
        return {"kind": "calibration", **found} if found is not None and len(found["bins"]) <= 100 else None

    def _clear(self) -> None:
        self._bins: dict[int, tuple[int, int, int]] = {}  # the masses of rows, scores and positives

    def _add(self, arrays: dict[str, Array]) -> None:
        scores = self._rows._probabilities(arrays)
        labels = self._binary(arrays, self.label, self.positive)
        weights = self._weights(arrays, self.weight)
        edges = np.arange(1, self.bins) / self.bins
        keys = np.searchsorted(edges, scores, side="left").astype(np.int64)
        present = np.bincount(keys, minlength=self.bins)
        if weights is None:
            masses = [int(count) << SCALE for count in present]
            positives = [int(count) << SCALE for count in np.bincount(keys[labels], minlength=self.bins)]
        else:
            masses = fixed_by(keys, weights, self.bins)
            positives = fixed_by(keys[labels], weights[labels], self.bins)
            scores = scores * weights
        sums = zip(masses, fixed_by(keys, scores, self.bins), positives, strict=True)
        self._merge_bins({at: found for at, found in enumerate(sums) if present[at]})

    def _merge_bins(self, bins: dict[int, tuple[int, int, int]]) -> None:
        for at, (mass, scores, positives) in bins.items():
            a, b, c = self._bins.get(at, (0, 0, 0))
            self._bins[at] = a + mass, b + scores, c + positives

    def _merge(self, other: Calibration) -> None:
        self._merge_bins(other._bins)

    def _state(self) -> Any:
        return [[at, *map(to_state, self._bins[at])] for at in sorted(self._bins)]

    def _restore(self, state: Any) -> None:
        self._bins = {at: (from_state(a), from_state(b), from_state(c)) for at, a, b, c in state}

    def _reason(self) -> str:
        return "" if self._bins else "no rows"
