"""Labels against predicted labels: the confusion matrix, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from headrace.accumulators.base import Array, Metric, Nan, codes_of, confusion_table, in_order, plain_key
from headrace.accumulators.exact import SCALE, as_float, fixed_by, from_state, ratio, to_state
from headrace.errors import ArgumentError, BadInput, nearest

Weighting = Literal["linear", "quadratic"] | None
_WEIGHTINGS = ("linear", "quadratic")
Average = Literal["binary", "macro", "micro", "weighted", "none"]
_AVERAGES = ("binary", "macro", "micro", "weighted", "none")
_MOST = 10_000  # classes


class ConfusionMatrix(Metric):
    """How often each label was predicted as which: ``{"labels": […], "matrix": [[…]]}``, rows are labels.

    Parameters
    ----------
    label, prediction
        Columns of labels: numbers, strings or booleans (which are 0 and 1). A prediction column of shape (n, k) has
        the scores of k classes, and the biggest, the first of them, is the prediction.
    threshold
        ``prediction`` holds scores, and those of at least so much are 1, the others 0.
    weight
        A column of weights, to count them instead of rows.
    nan
        ``"count"`` leaves rows with null or NaN out, ``"raise"`` ends the run.

    Raises
    ------
    ArgumentError
        What is no name or no number. ``BadInput`` in a run: more than 10,000 classes.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.from_items([{"y": "cat", "p": "cat"}, {"y": "dog", "p": "cat"}])
    >>> data.evaluate(matrix=hr.ConfusionMatrix(label="y", prediction="p"))
    {'matrix': {'labels': ['cat', 'dog'], 'matrix': [[1, 0], [1, 0]]}}
    """

    settings: Any = ("label", "prediction", "threshold", "weight")

    def __init__(
        self,
        label: str,
        prediction: str,
        *,
        threshold: float | None = None,
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        if threshold is not None and (isinstance(threshold, (bool, str)) or not math.isfinite(threshold)):
            raise ArgumentError(f"threshold={threshold!r} is not a number.")
        self.label, self.prediction, self.threshold, self.weight = label, prediction, threshold, weight
        self._begin([label, prediction, weight], nan)

    def result(self) -> Any:
        """Return labels and matrix."""
        labels = in_order({key for pair in self._cells for key in pair})
        matrix = [[self._number(self._cells.get((a, b), 0)) for b in labels] for a in labels]
        return {"labels": labels, "matrix": matrix}

    def chart(self) -> dict[str, Any] | None:
        """Return the matrix of the most frequent classes."""
        found = ConfusionMatrix.result(self)
        return confusion_table(found["labels"], found["matrix"])

    def _number(self, mass: int) -> int | float:
        return mass >> SCALE if self.weight is None else as_float(mass)

    def _clear(self) -> None:
        self._cells: dict[tuple[Any, Any], int] = {}  # the mass of rows, in units of 2**-1074

    def _add(self, arrays: dict[str, Array]) -> None:
        weights = self._weights(arrays, self.weight)
        true, labels = codes_of(arrays[self.label])
        predicted, predictions = codes_of(self._predicted(arrays))
        if len(labels) * len(predictions) <= 1 << 20:
            joint, pairs = true * len(predictions) + predicted, None
        else:
            pairs, joint = np.unique(true * len(predictions) + predicted, return_inverse=True)
        size = len(labels) * len(predictions) if pairs is None else len(pairs)
        counts = np.bincount(joint, minlength=size)
        masses = fixed_by(joint, weights, size) if weights is not None else None
        for at in np.flatnonzero(counts).tolist():
            a, b = divmod(at if pairs is None else int(pairs[at]), len(predictions))
            mass = int(counts[at]) << SCALE if masses is None else masses[at]
            cell = labels[a], predictions[b]
            self._cells[cell] = self._cells.get(cell, 0) + mass
        self._check()

    def _check(self) -> None:
        if len(self._cells) > _MOST:
            raise BadInput(
                f"{self!r}: more than {_MOST:,} pairs of label and prediction. These are not classes: if the "
                "prediction is a score, set threshold=."
            )

    def _predicted(self, arrays: dict[str, Array]) -> Array:
        values = arrays[self.prediction]
        if values.ndim == 2 and values.dtype.kind in "fiu":
            return np.asarray(values.argmax(axis=1))
        if self.threshold is None:
            return values
        return np.asarray(self._numbers(arrays, self.prediction) >= self.threshold)

    def _merge(self, other: ConfusionMatrix) -> None:
        for cell, mass in other._cells.items():
            self._cells[cell] = self._cells.get(cell, 0) + mass

    def _state(self) -> Any:
        return [[*cell, to_state(self._cells[cell])] for cell in in_order(self._cells)]

    def _restore(self, state: Any) -> None:
        self._cells = {(a, b): from_state(mass) for a, b, mass in state}

    def _reason(self) -> str:
        return "" if self._cells else "no rows"


class Accuracy(ConfusionMatrix):
    """The share of rows whose ``prediction`` is their ``label``; None if there is no row.

    ``threshold``, ``weight`` and ``nan`` as in ``ConfusionMatrix``. Raises ``ArgumentError`` for what is no name or
    no number; ``BadInput`` in a run for what are no classes.

    >>> import headrace as hr
    >>> data = hr.from_items([{"y": 1, "p": 0.75}, {"y": 0, "p": 0.5}])
    >>> data.evaluate(accuracy=hr.Accuracy(label="y", prediction="p", threshold=0.5))
    {'accuracy': 0.5}
    """

    def result(self) -> float | None:
        """Return the share."""
        right = sum(mass for (a, b), mass in self._cells.items() if a == b)
        total = sum(self._cells.values())
        return ratio(right, total) if total else None

    def chart(self) -> dict[str, Any] | None:
        """Return nothing: it does not count which class was predicted for which."""
        return None

    def _add(self, arrays: dict[str, Array]) -> None:
        weights = self._weights(arrays, self.weight)
        true, labels = codes_of(arrays[self.label])
        predicted, predictions = codes_of(self._predicted(arrays))
        places = {label: i for i, label in enumerate(labels)}
        same = true == np.array([places.get(each, -1) for each in predictions], np.int64)[predicted]
        if weights is None:
            masses = [int(count) << SCALE for count in np.bincount(same, minlength=2)]
        else:
            masses = fixed_by(same.astype(np.int64), weights, 2)
        for right in (0, 1):
            if masses[right]:
                self._cells[(0, right - 1)] = self._cells.get((0, right - 1), 0) + masses[right]


class PrecisionRecallF1(ConfusionMatrix):
    """Precision, recall and their harmonic mean: ``{"precision": …, "recall": …, "f1": …}``.

    Parameters
    ----------
    label, prediction, threshold, weight, nan
        As in ``ConfusionMatrix``.
    average
        ``"binary"``: those of the class ``positive``. ``"macro"``: the mean over all classes that occur;
        ``"weighted"``: weighted by how often their labels do. ``"micro"``: of all decisions together. ``"none"``: a
        dict of them for each class.
    positive
        The positive class, for ``"binary"``.

    What would be a division by zero is 0, as in scikit-learn.

    Raises
    ------
    ArgumentError
        There is no such average. ``BadInput`` in a run: what are no classes.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.from_items([{"y": 1, "p": 1}, {"y": 0, "p": 1}])
    >>> data.evaluate(f=hr.PrecisionRecallF1(label="y", prediction="p"))
    {'f': {'precision': 0.5, 'recall': 1.0, 'f1': 0.6666666666666666}}
    """

    settings: Any = ("label", "prediction", "average", "positive", "threshold", "weight")

    def __init__(
        self,
        label: str,
        prediction: str,
        *,
        average: Average = "binary",
        positive: Any = 1,
        threshold: float | None = None,
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        if average not in _AVERAGES:
            raise ArgumentError(
                f"average={average!r}: one of {', '.join(_AVERAGES)}.{nearest(str(average), _AVERAGES)}"
            )
        self.average, self.positive = average, positive
        super().__init__(label, prediction, threshold=threshold, weight=weight, nan=nan)

    def result(self) -> Any:
        """Return the three."""
        classes = in_order({key for pair in self._cells for key in pair})
        if not classes:
            return None
        right = {each: self._cells.get((each, each), 0) for each in classes}
        labels = dict.fromkeys(classes, 0)
        predictions = dict.fromkeys(classes, 0)
        for (a, b), mass in self._cells.items():
            labels[a] += mass
            predictions[b] += mass
        if self.average == "binary":
            each = plain_key(self.positive)
            return _three(right.get(each, 0), predictions.get(each, 0), labels.get(each, 0))
        if self.average == "micro":
            return _three(sum(right.values()), sum(predictions.values()), sum(labels.values()))
        threes = {each: _three(right[each], predictions[each], labels[each]) for each in classes}
        if self.average == "none":
            return threes
        weights = labels if self.average == "weighted" else dict.fromkeys(classes, 1)
        total = sum(weights.values())
        shares = {each: ratio(weights[each], total) if total else 0.0 for each in classes}
        return {
            name: math.fsum(shares[each] * threes[each][name] for each in classes)
            for name in ("precision", "recall", "f1")
        }


def _three(right: int, predicted: int, labelled: int) -> dict[str, float]:
    return {
        "precision": ratio(right, predicted) if predicted else 0.0,
        "recall": ratio(right, labelled) if labelled else 0.0,
        "f1": ratio(2 * right, predicted + labelled) if predicted + labelled else 0.0,
    }


class CohenKappa(ConfusionMatrix):
    """How far two columns of classes agree beyond chance: Cohen's kappa. 1 is full agreement, 0 is that of chance.

    Kappa is 1 − (disagreement found) ÷ (disagreement expected of two that choose independently, each class as often
    as they did). None where both columns have one and the same class.

    J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20 (1960);
    with ``weighting``, "Weighted kappa", Psychological Bulletin 70 (1968).

    Parameters
    ----------
    label, prediction, threshold, weight, nan
        As in ``ConfusionMatrix``.
    weighting
        How bad it is to miss by several classes: ``"linear"``, by their distance; ``"quadratic"``, by its square.
        None: any two that differ are equally bad.
    classes
        All classes in their order, for ``weighting``. Default: those that occur, sorted, one apart from the next.

    Raises
    ------
    ArgumentError
        There is no such weighting. ``BadInput`` in a run: a value that is none of ``classes``.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.from_items([{"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 2, "b": 1}, {"a": 1, "b": 1}])
    >>> data.evaluate(kappa=hr.CohenKappa(label="a", prediction="b"))
    {'kappa': 0.5}
    """

    settings: Any = ("label", "prediction", "weighting", "classes", "threshold", "weight")

    def __init__(
        self,
        label: str,
        prediction: str,
        *,
        weighting: Weighting = None,
        classes: Sequence[Any] | None = None,
        threshold: float | None = None,
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        self.weighting = given_weighting(weighting)
        self.classes = None if classes is None else list(map(plain_key, classes))
        super().__init__(label, prediction, threshold=threshold, weight=weight, nan=nan)

    def result(self) -> float | None:
        """Return kappa."""
        return kappa_of(self._cells, self.classes, self.weighting)

    def _check(self) -> None:
        super()._check()
        known = self.classes
        for value in {key for pair in self._cells for key in pair} if known is not None else ():
            if known is not None and value not in known:
                raise BadInput(f"{self!r}: {value!r:.80} is none of classes=.")

    def _reason(self) -> str:
        return super()._reason() or ("" if self.result() is not None else "all rows are of one class")


def given_weighting(value: Any) -> Weighting:
    """Read how bad it is to miss by several classes."""
    if value is not None and value not in _WEIGHTINGS:
        raise ArgumentError(
            f"weighting={value!r}: it is 'linear', 'quadratic' or None.{nearest(str(value), _WEIGHTINGS)}"
        )
    return value  # type: ignore[no-any-return]


def kappa_of(
    cells: Mapping[tuple[Any, Any], int], classes: Sequence[Any] | None, weighting: Weighting
) -> float | None:
    """Return kappa by how many rows have which pair of classes; None where there is but one class."""
    classes = classes or in_order({key for pair in cells for key in pair})
    places = {each: place for place, each in enumerate(classes)}
    rows, columns = [0] * len(classes), [0] * len(classes)
    found = 0
    for (a, b), mass in cells.items():
        i, j = places[a], places[b]
        rows[i] += mass
        columns[j] += mass
        apart = {None: int(i != j), "linear": abs(i - j), "quadratic": (i - j) ** 2}
        found += mass * apart[weighting]
    chance = _by_chance(rows, columns, weighting)
    return ratio(chance - found * sum(rows), chance) if chance else None


def _by_chance(rows: list[int], columns: list[int], weighting: Weighting) -> int:
    """Return the sum of rows[i] · columns[j] · (how far i and j are apart), in one pass over the classes."""
    total = sum(rows)
    if weighting is None:
        return total * total - sum(a * b for a, b in zip(rows, columns, strict=True))
    if weighting == "linear":  # for each border between classes, who is on different sides of it
        borders = zip(accumulate(rows), accumulate(columns), strict=True)
        return sum(a * (total - b) + b * (total - a) for a, b in borders)
    (first, squares), (others, more) = (
        [sum(mass * place**power for place, mass in enumerate(side)) for power in (1, 2)]
        for side in (rows, columns)
    )
    return total * (squares + more) - 2 * first * others
