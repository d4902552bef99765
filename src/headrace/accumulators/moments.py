"""Counts, sums, means and variances of a column, and of the errors of predicted numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.accumulators.base import Array, Metric, Nan, kind_of
from headrace.accumulators.exact import (
    SCALE,
    ExactSum,
    fixed,
    from_state,
    product,
    ratio,
    to_state,
    whole,
)
from headrace.errors import ArgumentError, BadInput


class Count(Metric):
    """Counts rows; with ``column``, those in which it is neither null nor NaN.

    Raises ``ArgumentError`` for what is no name.

    >>> import headrace as hr
    >>> hr.range(5).evaluate(rows=hr.Count())
    {'rows': 5}
    """

    settings = ("column",)

    def __init__(self, column: str | None = None) -> None:
        self.column = column
        self._begin([column], "count")

    def update(self, batch: pa.RecordBatch) -> None:
        """Count more rows."""
        kept = self._read(batch)[1] if self.column is not None else None
        self._count += batch.num_rows if kept is None else int(np.count_nonzero(kept))

    def result(self) -> int:
        """Return the number of rows."""
        return self._count

    def note(self) -> str:
        """There is nothing to add: what is null is what is not counted."""
        return ""

    def _clear(self) -> None:
        self._count = 0

    def _merge(self, other: Count) -> None:
        self._count += other._count

    def _state(self) -> int:
        return self._count

    def _restore(self, state: int) -> None:
        self._count = state


class Nulls(Count):
    """The share of rows in which ``column`` is null or NaN, from 0 to 1; None if there is no row.

    Raises ``ArgumentError`` for what is no name.

    >>> import headrace as hr
    >>> hr.from_items([{"x": 1.5}, {"x": None}]).evaluate(empty=hr.Nulls("x"))
    {'empty': 0.5}
    """

    def __init__(self, column: str) -> None:
        super().__init__(column)

    def result(self) -> float | None:  # type: ignore[override]
        """Return the share."""
        rows = self._count + self.skipped
        return self.skipped / rows if rows else None

    def note(self) -> str:
        """Return why there is no share, if there is none."""
        return "" if self._count + self.skipped else "no rows"


class Averaged(Metric):
    """Base of what is the mean of a number per row, which ``_values`` computes; exact whatever the order."""

    weight: str | None = None

    def result(self) -> float | None:
        """Return the mean; None if there is no row, or all weigh nothing."""
        return self._sum.over(self._mass) if self._mass else None

    def _values(self, arrays: dict[str, Array]) -> Array:
        raise NotImplementedError

    def _clear(self) -> None:
        self._sum = ExactSum()
        self._mass = 0  # of all rows, in units of 2**-1074

    def _add(self, arrays: dict[str, Array]) -> None:
        values, weights = self._weighted(self._values(arrays), arrays, self.weight)
        self._mass += len(values) << SCALE if weights is None else fixed(weights)
        self._sum.add(values)

    def _merge(self, other: Averaged) -> None:
        self._sum.merge(other._sum)
        self._mass += other._mass

    def _state(self) -> Any:
        return [*self._sum.state(), to_state(self._mass)]

    def _restore(self, state: Any) -> None:
        self._sum = ExactSum.from_state(state[:-1])
        self._mass = from_state(state[-1])

    def _reason(self) -> str:
        return "" if self._mass else "no rows"


class Mean(Averaged):
    """The mean of ``column``, weighted by the column ``weight`` if one is named.

    It is the exact sum, divided and rounded once. ``nan="count"`` leaves rows with null or NaN out. Raises
    ``ArgumentError`` for what is no name; ``BadInput`` in a run for a column that holds no numbers.

    >>> import headrace as hr
    >>> hr.range(5).evaluate(mean=hr.Mean("id"))
    {'mean': 2.0}
    """

    settings = ("column", "weight")

    def __init__(self, column: str, *, weight: str | None = None, nan: Nan = "raise") -> None:
        self.column, self.weight = column, weight
        self._begin([column, weight], nan)

    def _values(self, arrays: dict[str, Array]) -> Array:
        return self._numbers(arrays, self.column)


class Sum(Metric):
    """The sum of ``column``: an int for integers of any size, else the exact sum, rounded to a float once.

    ``weight`` names a column of weights. ``nan="count"`` leaves rows with null or NaN out. Raises ``ArgumentError``
    for what is no name; ``BadInput`` in a run for a column that holds no numbers.

    >>> import headrace as hr
    >>> hr.from_items([{"x": 0.1}] * 10).evaluate(total=hr.Sum("x"))
    {'total': 1.0}
    """

    settings = ("column", "weight")

    def __init__(self, column: str, *, weight: str | None = None, nan: Nan = "raise") -> None:
        self.column, self.weight = column, weight
        self._begin([column, weight], nan)

    def result(self) -> int | float:
        """Return the sum; 0 if there is no row."""
        return self._sum.value() if self._floats else self._sum.total >> SCALE

    def _clear(self) -> None:
        self._sum = ExactSum()
        self._floats = False

    def _add(self, arrays: dict[str, Array]) -> None:
        values = arrays[self.column]
        if self.weight is None and values.dtype.kind in "iub" and values.ndim == 1:
            self._sum.total += whole(values.view(np.uint8) if values.dtype.kind == "b" else values) << SCALE
            return
        self._floats = True
        self._sum.add(self._weighted(self._numbers(arrays, self.column), arrays, self.weight)[0])

    def _merge(self, other: Sum) -> None:
        self._sum.merge(other._sum)
        self._floats = self._floats or other._floats

    def _state(self) -> Any:
        return [*self._sum.state(), self._floats]

    def _restore(self, state: Any) -> None:
        self._sum = ExactSum.from_state(state[:-1])
        self._floats = state[-1]


class Moments:
    """The exact sums of weights, of weighted values and of weighted squares, in units of 2⁻¹⁰⁷⁴."""

    __slots__ = ("infinite", "mass", "squares", "total")

    def __init__(self, mass: int = 0, total: int = 0, squares: int = 0, infinite: int = 0) -> None:
        self.mass, self.total, self.squares, self.infinite = mass, total, squares, infinite

    def add(self, values: Array, weights: Array | None) -> None:
        """Add float64 values; products are kept with what rounding would take away, so that nothing cancels."""
        finite = np.abs(values) < 2.0**500
        if not finite.all():
            self.infinite += int(np.count_nonzero(~finite))
            values, weights = values[finite], weights[finite] if weights is not None else None
        once = (values,) if weights is None else product(values, weights)
        self.mass += len(values) << SCALE if weights is None else fixed(weights)
        self.total += sum(map(fixed, once))
        self.squares += sum(fixed(part) for each in once for part in product(each, values))

    def merge(self, other: Moments) -> None:
        """Add others."""
        self.mass += other.mass
        self.total += other.total
        self.squares += other.squares
        self.infinite += other.infinite

    def spread(self) -> int:
        """Return mass² times the variance, in units of 2⁻²¹⁴⁸."""
        return max(self.squares * self.mass - self.total**2, 0)

    def state(self) -> list[Any]:
        """Return what ``from_state`` takes."""
        return [*map(to_state, (self.mass, self.total, self.squares)), self.infinite]

    @classmethod
    def from_state(cls, state: list[Any]) -> Moments:
        """Return the moments that this is the state of."""
        mass, total, squares = map(from_state, state[:3])
        return cls(mass, total, squares, state[3])


class Variance(Metric):
    """The variance of ``column``: the exact one of the values as they are, rounded once.

    ``ddof`` is taken from the number of values (or from the sum of the weights, with ``weight``) to divide by, as in
    numpy. ``nan="count"`` leaves rows with null or NaN out. None where there are not enough values, or where one is
    beyond ±2⁵⁰⁰. Raises ``ArgumentError`` for what is no name; ``BadInput`` in a run for a column that holds no
    numbers.

    >>> import headrace as hr
    >>> hr.from_items([{"x": 1e9}, {"x": 1e9 + 1}]).evaluate(var=hr.Variance("x"))
    {'var': 0.25}
    """

    settings = ("column", "weight", "ddof")

    def __init__(self, column: str, *, weight: str | None = None, ddof: int = 0, nan: Nan = "raise") -> None:
        if isinstance(ddof, bool) or not isinstance(ddof, int) or ddof < 0:
            raise ArgumentError(f"ddof={ddof!r} is not a whole number, 0 or more.")
        self.column, self.weight, self.ddof = column, weight, ddof
        self._begin([column, weight], nan)

    def result(self) -> float | None:
        """Return the variance."""
        moments = self._moments
        left = moments.mass - (self.ddof << SCALE)
        return ratio(moments.spread(), moments.mass * left) if left > 0 and not moments.infinite else None

    def _clear(self) -> None:
        self._moments = Moments()

    def _add(self, arrays: dict[str, Array]) -> None:
        self._moments.add(self._numbers(arrays, self.column), self._weights(arrays, self.weight))

    def _merge(self, other: Variance) -> None:
        self._moments.merge(other._moments)

    def _state(self) -> Any:
        return self._moments.state()

    def _restore(self, state: Any) -> None:
        self._moments = Moments.from_state(state)

    def _reason(self) -> str:
        if self._moments.infinite:
            return "there are values beyond ±2⁵⁰⁰, such as infinity"
        return "" if self._moments.mass > self.ddof << SCALE else f"needs more than {self.ddof} rows"


class MinMax(Metric):
    """The smallest and the biggest number of ``column``: ``{"min": …, "max": …}``, None where there is no row.

    ``nan="count"`` leaves rows with null or NaN out. Raises ``ArgumentError`` for what is no name; ``BadInput`` in a
    run for a column that holds no numbers.

    >>> import headrace as hr
    >>> hr.range(5).evaluate(ids=hr.MinMax("id"))
    {'ids': {'min': 0, 'max': 4}}
    """

    settings = ("column",)

    def __init__(self, column: str, *, nan: Nan = "raise") -> None:
        self.column = column
        self._begin([column], nan)

    def result(self) -> dict[str, Any]:
        """Return both."""
        low, high = self._ends or (None, None)
        return {"min": low, "max": high}

    def _clear(self) -> None:
        self._ends: tuple[Any, Any] | None = None

    def _add(self, arrays: dict[str, Array]) -> None:
        values = self._as_they_are(arrays)
        low, high = values.min(), values.max()
        if values.dtype.kind == "f":
            low, high = low + 0.0, high + 0.0  # there is one zero
        self._widen(low.item(), high.item())

    def _as_they_are(self, arrays: dict[str, Array]) -> Array:
        values = arrays[self.column]
        if values.dtype.kind not in "fiub" or values.ndim != 1:
            raise BadInput(f"{self!r}: column {self.column!r} holds no numbers, but {kind_of(values)}.")
        return values

    def _widen(self, low: Any, high: Any) -> None:
        before = self._ends or (low, high)
        self._ends = min(low, before[0]), max(high, before[1])

    def _merge(self, other: MinMax) -> None:
        if other._ends is not None:
            self._widen(*other._ends)

    def _state(self) -> Any:
        return self._ends

    def _restore(self, state: Any) -> None:
        self._ends = tuple(state) if state is not None else None

    def _reason(self) -> str:
        return "" if self._ends else "no rows"


# ---------------------------------------------------------------- numbers against predicted numbers


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
