"""What a column's values are like: histogram, quantiles, how many different ones, and the biggest."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.accumulators.base import Array, Estimate, Metric, Nan, histogram_bars, kind_of, plain_key
from headrace.accumulators.exact import as_float, fixed_by, from_state, to_state
from headrace.core.arrow.batch import filtered, taken
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.plain import plain
from headrace.errors import ArgumentError, BadInput


class Histogram(Metric):
    """How many rows have a value of ``column`` between each two neighbours of ``edges``.

    The result is ``{"edges": […], "counts": […], "below": …, "above": …}``. A value on an edge counts above it, but
    on the last edge below it, as in numpy. ``weight`` names a column of weights, whose sums are counted then;
    ``nan="count"`` leaves rows with null or NaN out. Raises ``ArgumentError`` for edges that are not at least two
    finite numbers, each bigger than the one before; ``BadInput`` in a run for a column that holds no numbers.

    >>> import headrace as hr
    >>> hr.range(10).evaluate(ids=hr.Histogram("id", edges=[0, 4, 8]))
    {'ids': {'edges': [0.0, 4.0, 8.0], 'counts': [4, 5], 'below': 0, 'above': 1}}
    """

    settings = ("column", "edges", "weight")

    def __init__(
        self, column: str, edges: Sequence[float], *, weight: str | None = None, nan: Nan = "raise"
    ) -> None:
        try:
            self.edges = [float(edge) for edge in edges]
        except (TypeError, ValueError):
            self.edges = []
        if (
            len(self.edges) < 2
            or not all(map(math.isfinite, self.edges))
            or any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False))
        ):
            raise ArgumentError(
                f"edges={edges!r} are not at least two finite numbers, each bigger than the one before."
            )
        self.column, self.weight = column, weight
        self._begin([column, weight], nan)

    def result(self) -> dict[str, Any]:
        """Return edges and counts."""
        masses = [self._masses.get(place, 0) for place in range(len(self.edges) + 1)]
        counts: list[Any] = masses if self.weight is None else [as_float(mass) for mass in masses]
        return {"edges": list(self.edges), "counts": counts[1:-1], "below": counts[0], "above": counts[-1]}

    def chart(self) -> dict[str, Any] | None:
        """Return the histogram, of bins that are few enough to be seen."""
        return histogram_bars(**self.result())

    def _clear(self) -> None:
        self._masses: dict[int, int] = {}

    def _add(self, arrays: dict[str, Array]) -> None:
        values, weights = self._numbers(arrays, self.column), self._weights(arrays, self.weight)
        places = np.searchsorted(self.edges, values, side="right").astype(np.int64)
        places[values == self.edges[-1]] -= 1
        counts = np.bincount(places)
        masses = counts.tolist() if weights is None else fixed_by(places, weights, len(counts))
        self._count({place: masses[place] for place in np.flatnonzero(counts).tolist()})

    def _count(self, masses: dict[int, int]) -> None:
        for place, mass in masses.items():
            self._masses[place] = self._masses.get(place, 0) + mass

    def _merge(self, other: Histogram) -> None:
        self._count(other._masses)

    def _state(self) -> Any:
        return [[place, to_state(self._masses[place])] for place in sorted(self._masses)]

    def _restore(self, state: Any) -> None:
        self._masses = {place: from_state(mass) for place, mass in state}


class Quantiles(Metric):
    """Quantiles of ``column``, each within ``relative_error`` of the true value: ``{0.5: …, 0.99: …}``.

    Values are counted in bins whose borders grow by a constant factor (DDSketch, Masson, Rim and Lee, 2019); bins are
    never joined, so merging loses nothing. At 0.01 that are 1,150 bins for values from 1 to 10¹⁰. The q-quantile is
    the smallest value that at least the share q of all rows does not exceed. ``weight`` names a column of weights;
    ``nan="count"`` leaves rows with null or NaN out. None where there is no row. Raises ``ArgumentError`` for a ``q``
    that is not from 0 to 1, or a ``relative_error`` that is not from 0.0001 to 0.5; ``BadInput`` in a run for a
    column that holds no numbers.

    >>> import headrace as hr
    >>> found = hr.range(1001).evaluate(ids=hr.Quantiles("id", q=[0.5], relative_error=0.001))["ids"]
    >>> abs(found[0.5] - 500) <= 0.5
    True
    """

    settings = ("column", "q", "relative_error", "weight")

    def __init__(
        self,
        column: str,
        q: float | Sequence[float] = (0.01, 0.25, 0.5, 0.75, 0.99),
        *,
        relative_error: float = 0.01,
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        try:
            asked = [q] if isinstance(q, (int, float)) else list(q)
            self.q = [float(each) for each in asked]
        except (TypeError, ValueError):
            self.q = []
        if not self.q or not all(0 <= each <= 1 for each in self.q):
            raise ArgumentError(f"q={q!r} is not a number from 0 to 1, or a list of them.")
        if not isinstance(relative_error, float) or not 1e-4 <= relative_error <= 0.5:
            raise ArgumentError(f"relative_error={relative_error!r} is not from 0.0001 to 0.5.")
        self.column, self.relative_error, self.weight = column, relative_error, weight
        self._growth = math.log((1 + relative_error) / (1 - relative_error))
        self._begin([column, weight], nan)

    def result(self) -> dict[float, float] | None:
        """Return the quantiles."""
        keys = sorted(self._bins)
        total = sum(self._bins.values())
        if not total:
            return None
        found = {}
        for q in self.q:
            wanted, seen = q.as_integer_ratio(), 0
            for key in keys:
                seen += self._bins[key]
                if seen * wanted[1] >= total * wanted[0] and seen:
                    break
            found[q] = self._value(key)
        return found

    def _value(self, key: tuple[int, int]) -> float:
        sign, bin_ = key
        if sign in (-2, 0, 2):
            return {-2: -math.inf, 0: 0.0, 2: math.inf}[sign]
        bin_ = -bin_ if sign < 0 else bin_
        return sign * math.exp(min(bin_ * self._growth, 709.7)) * (1 - self.relative_error)

    def _clear(self) -> None:
        # By (sign, number), so that they sort as values do: the number of a negative value is turned around. The sign
        # is ±2 for infinity. A bin has what is above growth^(number - 1), up to growth^number.
        self._bins: dict[tuple[int, int], int] = {}

    def _add(self, arrays: dict[str, Array]) -> None:
        values, weights = self._numbers(arrays, self.column), self._weights(arrays, self.weight)
        with np.errstate(divide="ignore"):
            numbers = np.ceil(np.log(np.abs(values)) / self._growth)
        signs = np.sign(values).astype(np.int64)
        plain = np.isfinite(numbers)
        signs[~plain] *= 2
        signs[values == 0] = 0
        numbers = np.where(plain, numbers, 0).astype(np.int64) * np.where(signs < 0, -1, 1)
        low = int(numbers.min())
        width = int(numbers.max()) - low + 1
        joint = (signs + 2) * width + (numbers - low)
        if 5 * width <= 4 * len(joint) + 65_536:
            distinct, places = np.arange(5 * width), joint
        else:
            distinct, places = np.unique(joint, return_inverse=True)
        counts = np.bincount(places, minlength=len(distinct))
        masses = counts.tolist() if weights is None else fixed_by(places, weights, len(distinct))
        for place in np.flatnonzero(counts).tolist():
            sign, number = divmod(int(distinct[place]), width)
            key = sign - 2, number + low
            self._bins[key] = self._bins.get(key, 0) + masses[place]

    def _merge(self, other: Quantiles) -> None:
        for key, mass in other._bins.items():
            self._bins[key] = self._bins.get(key, 0) + mass

    def _state(self) -> Any:
        return [[*key, to_state(self._bins[key])] for key in sorted(self._bins)]

    def _restore(self, state: Any) -> None:
        self._bins = {(sign, number): from_state(mass) for sign, number, mass in state}

    def _reason(self) -> str:
        return "" if self._bins else "no rows"


class DistinctCount(Metric):
    """How many different values ``column`` has; null and NaN do not count.

    Up to ``limit`` of them the result is an exact int, as far as 64 bits of hash distinguish values. Beyond, it is a
    HyperLogLog estimate (Flajolet and others, 2007, in the form of Ertl, 2017) with 16,384 registers: an ``Estimate``
    whose ``low`` and ``high`` are three standard errors, 2.4 %, away. Raises ``ArgumentError`` for a ``limit`` that
    is no whole number, 0 or more.

    >>> import headrace as hr
    >>> hr.from_items(["a", "b", "a"]).evaluate(items=hr.DistinctCount("item"))
    {'items': 2}
    """

    settings = ("column", "limit")
    _BITS = 14

    def __init__(self, column: str, *, limit: int = 65_536) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ArgumentError(f"limit={limit!r} is not a whole number, 0 or more.")
        self.column, self.limit = column, limit
        self._begin([column], "count")

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        column = plain(batch.column(self.column))
        if column.null_count:
            self.skipped += column.null_count
            column = column.drop_null()
        if len(column):
            self._hashes(_hashes(column, self))

    def note(self) -> str:
        """There is nothing to add."""
        return ""

    def result(self) -> int | Estimate:
        """Return the number of different values."""
        if self._registers is None:
            return len(self._exact)
        value = _estimate(np.bincount(self._registers, minlength=64 - self._BITS + 2), self._BITS)
        error = 3 * 1.04 / math.sqrt(1 << self._BITS)
        return Estimate(value, value * (1 - error), value * (1 + error))

    def _clear(self) -> None:
        self._exact: Array = np.zeros(0, np.uint64)
        self._registers: Array | None = None

    def _hashes(self, hashes: Array) -> None:
        if self._registers is None:
            self._exact = np.union1d(self._exact, hashes)
            if len(self._exact) <= self.limit:
                return
            hashes, self._exact = self._exact, self._exact[:0]
            self._registers = np.zeros(1 << self._BITS, np.uint8)
        rest = 64 - self._BITS
        places = (hashes >> np.uint64(rest)).astype(np.int64)
        digits = np.frexp((hashes & np.uint64((1 << rest) - 1)).astype(np.float64))[1]
        np.maximum.at(self._registers, places, (rest - digits + 1).astype(np.uint8))

    def _merge(self, other: DistinctCount) -> None:
        if other._registers is None:
            if len(other._exact):
                self._hashes(other._exact)
            return
        if self._registers is None:
            mine, self._exact = self._exact, self._exact[:0]
            self._registers = np.zeros(1 << self._BITS, np.uint8)
            self._hashes(mine)
        np.maximum(self._registers, other._registers, out=self._registers)

    def _state(self) -> Any:
        return [self._exact.tobytes(), None if self._registers is None else self._registers.tobytes()]

    def _restore(self, state: Any) -> None:
        self._exact = np.frombuffer(state[0], np.uint64)
        self._registers = None if state[1] is None else np.frombuffer(bytearray(state[1]), np.uint8)


def _hashes(column: pa.Array, metric: DistinctCount) -> Array:
    """Return a 64-bit hash of each value, or of each different value; the same on every machine."""
    if column.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        distinct = column.dictionary_encode().dictionary.to_pylist()
        texts = (
            value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in distinct
        )
        return np.array(
            [int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in texts],
            np.uint64,
        )
    values = to_numpy(column)
    if values.dtype.kind == "f":
        there = ~np.isnan(values)
        metric.skipped += int(len(values) - there.sum())
        return _mixed((values[there].astype(np.float64) + 0.0).view(np.uint64))
    if values.dtype.kind in "iubmM" and values.ndim == 1:
        return _mixed(values.astype(np.int64).view(np.uint64))
    raise BadInput(
        f"{metric!r}: the values of column {metric.column!r}, {column.type}, cannot be told apart by a hash."
    )


def _mixed(bits: Array) -> Array:
    """Mix the bits of each number (the finaliser of splitmix64, Steele, Lea and Flood, 2014)."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def _estimate(counts: Array, bits: int) -> float:
    """Return Ertl's improved estimate from how often each value of a register occurs."""
    size, rest = 1 << bits, 64 - bits
    z = size * _tau(1 - counts[rest + 1] / size)
    for value in range(rest, 0, -1):
        z = (z + float(counts[value])) / 2
    z += size * _sigma(counts[0] / size)
    return float(size / (2 * math.log(2)) * size / z)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, total = 1.0, x
    while True:
        x, before = x * x, total
        total += x * y
        y += y
        if total == before:
            return total


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, total = 1.0, 1 - x
    while True:
        x, before, y = math.sqrt(x), total, y / 2
        total -= (1 - x) ** 2 * y
        if total == before:
            return total / 3


# ---------------------------------------------------------------- the rows with the biggest values


class TopK(Metric):
    """The ``k`` rows with the biggest values of ``column``, the biggest first.

    They are dicts of ``column`` and the columns ``keep``. With ``smallest=True`` those with the smallest. Among
    equal values, those go first whose kept columns sort first as text, so that the order of rows makes no
    difference. ``nan="count"`` leaves rows with null or NaN in ``column`` out. Raises ``ArgumentError`` for a ``k``
    that is not from 1 to 100,000; ``BadInput`` in a run for a column that holds no numbers.

    >>> import headrace as hr
    >>> data = hr.from_items([{"id": "a", "loss": 0.1}, {"id": "b", "loss": 2.5}])
    >>> data.evaluate(worst=hr.TopK("loss", k=1, keep=["id"]))
    {'worst': [{'loss': 2.5, 'id': 'b'}]}
    """

    settings = ("column", "k", "keep", "smallest")

    def __init__(
        self,
        column: str,
        k: int = 10,
        *,
        keep: str | Sequence[str] = (),
        smallest: bool = False,
        nan: Nan = "raise",
    ) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= 100_000:
            raise ArgumentError(f"k={k!r} is not a whole number from 1 to 100,000.")
        self.column, self.k, self.smallest = column, k, bool(smallest)
        self.keep = [keep] if isinstance(keep, str) else list(keep)
        self._begin([column, *self.keep], nan)

    _rows: list[tuple[Any, ...]]

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        values = batch.column(self.column)
        if values.null_count:
            self._refuse(self.column, "null", values.null_count)
            self.skipped += values.null_count
            batch = filtered(batch, to_numpy(values.is_valid()))
        numbers = to_numpy(batch.column(self.column))
        if numbers.dtype.kind not in "fiub" or numbers.ndim != 1:
            raise BadInput(f"{self!r}: column {self.column!r} holds no numbers, but {kind_of(numbers)}.")
        chosen = np.arange(len(numbers))
        if numbers.dtype.kind == "f" and np.isnan(numbers).any():
            chosen = np.flatnonzero(~np.isnan(numbers))
            self._refuse(self.column, "NaN", len(numbers) - len(chosen))
            self.skipped += len(numbers) - len(chosen)
        chosen = self._candidates(numbers, chosen)
        if len(chosen):
            found = taken(batch, chosen)
            columns = [found.column(name).to_pylist() for name in (self.column, *self.keep)]
            self._keep(zip(*(map(plain_key, column) for column in columns), strict=True))

    def _candidates(self, numbers: Array, chosen: Array) -> Array:
        """Return which rows may be among the first: ties with the last of them included."""
        if len(chosen) <= self.k:
            return chosen
        values = numbers[chosen]
        at = self.k - 1 if self.smallest else len(values) - self.k
        edge = np.partition(values, at)[at]
        return np.asarray(chosen[values <= edge] if self.smallest else chosen[values >= edge])

    def _keep(self, rows: Any) -> None:
        self._rows = heapq.nsmallest(self.k, [*self._rows, *map(tuple, rows)], key=self._rank)

    def _rank(self, row: tuple[Any, ...]) -> Any:
        return row[0] if self.smallest else -row[0], tuple(map(repr, row[1:]))

    def result(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return [dict(zip((self.column, *self.keep), row, strict=True)) for row in self._rows]

    def _clear(self) -> None:
        self._rows = []

    def _merge(self, other: TopK) -> None:
        self._keep(other._rows)

    def _state(self) -> Any:
        return self._rows

    def _restore(self, state: Any) -> None:
        self._rows = [tuple(row) for row in state]
