"""One column against another: which rows differ, by how much, and how the values are spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.accumulators.base import Array, Metric, confusion_table, histogram_bars, in_order, plain_key
from headrace.accumulators.scores import by_bits, packed, unpacked
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.buffers import mask_of
from headrace.core.arrow.plain import kind_of, plain
from headrace.core.arrow.same import Mask, numbers, same
from headrace.errors import ArgumentError

# ---------------- counts by leading digits, in bins that any order of merging fills alike

_BITS = 18  # of a float32: a bin is about 0.2 % of its numbers wide
_INFINITE = 0x7F800000  # the bits of a float32
_HALF = 1 << (_BITS - 1)


Binned = tuple[int, Array]
"""The first bin that some numbers are in, and how many are in each from there on."""


def binned(values: Array) -> Binned:
    """Count numbers by bin, the infinities included; NaN is not to be among them."""
    if not len(values):
        return 0, np.zeros(0, np.int64)
    keys = by_bits(values) >> (32 - _BITS)
    low = int(keys.min())
    return low + _HALF, np.bincount(keys - low)


class Digits:
    """How many numbers lie in each bin: ``counts`` from the bin ``first`` on, as far as numbers reach."""

    def __init__(self) -> None:
        self.first = 0
        self.counts: Array = np.zeros(0, np.int64)

    def add(self, some: Binned, times: int = 1) -> None:
        """Count numbers, each so many times; -1 takes back what was counted."""
        low, counts = some
        if len(counts):
            self._reach(low, low + len(counts))
            at = low - self.first
            self.counts[at : at + len(counts)] += counts if times == 1 else times * counts

    def _reach(self, low: int, high: int) -> None:
        first, last = (self.first, self.first + len(self.counts)) if len(self.counts) else (low, high)
        if low < first or high > last or not len(self.counts):
            grown = np.zeros(max(high, last) - min(low, first), np.int64)
            at = self.first - min(low, first) if len(self.counts) else 0
            grown[at : at + len(self.counts)] = self.counts
            self.first, self.counts = min(low, first), grown

    def merge(self, other: Digits) -> None:
        """Count what another has counted."""
        self.add((other.first, other.counts))

    def between(self, low: int, high: int) -> Array:
        """Return the counts from a bin up to another, which hold all that there are."""
        found = np.zeros(high - low, np.int64)
        at = self.first - low if len(self.counts) else 0
        found[at : at + len(self.counts)] = self.counts
        return found

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return int(self.counts.sum())

    def quantile(self, q: float) -> float:
        """Return the middle of the bin with the smallest number that at least the share ``q`` does not exceed."""
        reached = np.cumsum(self.counts)
        place = self.first + np.searchsorted(reached, max(1.0, q * reached[-1]))
        return float(middles(np.array([place]))[0])

    def state(self) -> list[Any]:
        """Return plain values; the same for the same numbers in any order."""
        there = np.flatnonzero(self.counts)
        return [packed(np.diff(there + self.first, prepend=0)), packed(self.counts[there])]

    def restore(self, state: list[Any]) -> None:
        """Take the state of another."""
        there = np.cumsum(unpacked(state[0]).astype(np.int64))
        if len(there):
            self._reach(int(there[0]), int(there[-1]) + 1)
            self.counts[there - self.first] = unpacked(state[1])


def together(old: Digits, new: Digits) -> tuple[int, Array, Array]:
    """Return the first bin of either, and the counts of both from there on."""
    some = [each for each in (old, new) if len(each.counts)]
    low = min((each.first for each in some), default=0)
    high = max((each.first + len(each.counts) for each in some), default=0)
    return low, old.between(low, high), new.between(low, high)


def middles(places: Array) -> Array:
    """Return the numbers in the middle of bins, which are given by their places among all."""
    keys = places.astype(np.int64) - _HALF
    sizes = np.where(keys < 0, -1 - keys, keys) << (32 - _BITS)
    low = sizes.astype(np.int32).view(np.float32).astype(np.float64)
    high = (
        np.minimum(sizes + (1 << (32 - _BITS)), _INFINITE)
        .astype(np.int32)
        .view(np.float32)
        .astype(np.float64)
    )
    middle = np.where(np.isfinite(high), (low + high) / 2, low)
    middle[sizes == 0] = 0.0
    return np.where(keys < 0, -middle, middle)


def ks(old: Array, new: Array) -> float | None:
    """Return the biggest difference of the shares below any border of bins: the statistic of Kolmogorov and Smirnov.

    None where a side has no number. Source: N. V. Smirnov, Table for estimating the goodness of fit of empirical
    distributions, Annals of Mathematical Statistics 19 (1948).
    """
    if not (old.any() and new.any()):
        return None
    return float(np.abs(np.cumsum(old) / old.sum() - np.cumsum(new) / new.sum()).max())


def psi(old: Array, new: Array) -> float | None:
    """Return the population stability index of counts by bin: the sum of (new - old) ln(new / old) over shares.

    A share of nothing counts as 0.0001. None where a side has no row. Source: N. Siddiqi, Credit Risk Scorecards
    (Wiley, 2006), whose usual reading is: below 0.1 no shift, above 0.25 a major one.
    """
    if not (old.any() and new.any()):
        return None
    a, b = (np.maximum(counts / counts.sum(), 1e-4) for counts in (old, new))
    return float(((b - a) * np.log(b / a)).sum())


def tenths(old: Array, new: Array) -> tuple[Array, Array]:
    """Join the bins of both sides to ten, each of which has about a tenth of the old numbers."""
    total = int(old.sum())
    before = np.cumsum(old) - old
    group = np.minimum(9, 10 * before // max(1, total))
    return np.bincount(group, old, 10), np.bincount(group, new, 10)


_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_BARS = 40  # of the histogram
_WHOLE = 2.0**62  # differences of int64 below it are exact


class Differences(Metric):
    """How the values of the column ``new`` differ from those of ``old``, such as the results of two models.

    The result is a dict:

    - ``rows``, ``changed`` and ``share``: rows, how many of them hold two different values, and their share.
    - ``filled`` and ``emptied``: rows in which only ``new`` has a value, or only ``old``.
    - ``difference``: of numbers that changed, the least and the greatest ``new - old``, and quantiles of it.
    - ``psi`` and ``ks``: how far the distributions lie apart. ``psi`` is the population stability index (Siddiqi,
      2006), by tenths of the old numbers or by class, with nulls as a class. ``ks`` is the greatest distance of the
      distribution functions (Kolmogorov, 1933; Smirnov, 1948), for numbers.
    - ``classes``: of text, booleans and whole numbers with at most so many different values as the argument
      ``classes``, a matrix of rows by old value and by new value.

    What is not there for a type of column is None. Null equals null, NaN equals NaN, and numbers are compared by
    value, whatever their types. Numbers are counted by their leading digits, so ``ks``, ``psi`` and quantiles are
    those of numbers that are rounded by 0.1 % at most; of sizes that float32 has not (beyond 3e38, below 1e-38), they
    are those of infinite numbers and of zero. Raises ``ArgumentError`` for a ``classes`` that is not from
    0 to 1,000.

    >>> import headrace as hr
    >>> data = hr.from_items([{"a": "cat", "b": "cat"}, {"a": "dog", "b": "cat"}])
    >>> found = data.evaluate(pets=hr.Differences(old="a", new="b"))["pets"]
    >>> found["share"], found["classes"]
    (0.5, {'labels': ['cat', 'dog'], 'matrix': [[1, 0], [1, 0]]})
    """

    settings = ("old", "new", "classes")
    _digits: tuple[Digits, Digits, Digits] | None  # of old values, of new ones, of differences
    _missing: list[int]  # old and new numbers that are null or NaN
    _least: float
    _most: float
    _cells: dict[tuple[Any, Any], int] | None  # None: they are no classes

    def __init__(self, old: str, new: str, *, classes: int = 50) -> None:
        if isinstance(classes, bool) or not isinstance(classes, int) or not 0 <= classes <= 1000:
            raise ArgumentError(f"classes={classes!r} is not a whole number from 0 to 1,000.")
        self.old, self.new, self.classes = old, new, classes
        self._begin([old, new], "count")

    def update(self, batch: pa.RecordBatch) -> None:
        """Count more rows."""
        self.add(batch.column(self.old), batch.column(self.new))

    def add(self, old: pa.Array, new: pa.Array) -> tuple[Mask, Array | None]:
        """Count more rows, which are given as two columns.

        Return which of them differ, and of those the difference of the numbers: NaN where one is none, and None for
        columns that hold no numbers.
        """
        old, new = plain(old), plain(new)
        changed = ~same(old, new)
        self.rows += len(old)
        self.changed += int(np.count_nonzero(changed))
        kinds = kind_of(old.type), kind_of(new.type)
        if "null" not in kinds and kinds[0] != kinds[1]:
            self._kinds.add(kinds)
        if old.null_count or new.null_count:
            there, other = (to_numpy(each.is_valid()) for each in (old, new))
            self.filled += int(np.count_nonzero(other & ~there))
            self.emptied += int(np.count_nonzero(there & ~other))
        by = self._add_numbers(old, new, changed) if kinds == ("number", "number") else None
        if self._cells is not None:
            self._add_classes(old, new, changed)
        return changed, by

    # ------------------------------------------------------------ numbers

    def _add_numbers(self, old: pa.Array, new: pa.Array, changed: Mask) -> Array:
        if self._digits is None:
            self._digits = Digits(), Digits(), Digits()
        before, after, difference = self._digits
        values, missing = _present(old)
        some = binned(values)
        before.add(some)
        after.add(some)
        self._missing[0] += missing
        self._missing[1] += missing
        if not changed.any():
            return np.zeros(0)
        mask = mask_of(changed)
        old, new = old.filter(mask), new.filter(mask)
        for column, times in ((old, -1), (new, 1)):  # the others are the same on both sides
            values, missing = _present(column)
            after.add(binned(values), times)
            self._missing[1] += times * missing
        by = _difference(old, new)
        found = by[~np.isnan(by)]
        if len(found):
            self._least = min(self._least, float(found.min()))
            self._most = max(self._most, float(found.max()))
            difference.add(binned(found))
        return by

    # ------------------------------------------------------------ classes

    def _add_classes(self, old: pa.Array, new: pa.Array, changed: Mask) -> None:
        if not (_has_classes(old.type) and _has_classes(new.type)) or self._cells is None:
            self._cells = None
            return
        codes, labels = self._codes(old)
        to, others = self._codes(new.filter(mask_of(changed)))
        if labels is None or others is None:
            self._cells = None
            return
        same = np.bincount(codes[~changed], minlength=len(labels)).tolist()
        joint = np.bincount(codes[changed] * len(others) + to, minlength=len(labels) * len(others))
        found = [(label, label, count) for label, count in zip(labels, same, strict=True)]
        found += [
            (labels[at // len(others)], others[at % len(others)], int(joint[at]))
            for at in np.flatnonzero(joint).tolist()
        ]
        self._count_cells(found)

    def _codes(self, column: pa.Array) -> tuple[Array, list[Any] | None]:
        """Return the number of each row's value among the different ones, and these; None if there are too many."""
        column = column.dictionary_encode(null_encoding="encode")
        labels = column.dictionary
        few = len(labels) <= self.classes
        return to_numpy(column.indices).astype(np.int64), [
            *map(plain_key, labels.to_pylist())
        ] if few else None

    def _count_cells(self, found: Any) -> None:
        assert self._cells is not None
        for a, b, count in found:
            if count:
                self._cells[a, b] = self._cells.get((a, b), 0) + count
        if len({label for cell in self._cells for label in cell}) > self.classes:
            self._cells = None

    # ------------------------------------------------------------ what was found

    def result(self) -> dict[str, Any]:
        """Return all that was counted; None for what there is not."""
        share = self.changed / self.rows if self.rows else 0.0
        found: dict[str, Any] = {"rows": self.rows, "changed": self.changed, "share": share}
        found |= {"filled": self.filled, "emptied": self.emptied, "difference": None, "psi": None, "ks": None}
        if self._digits is not None:
            before, after, difference = self._digits
            _, one, other = together(before, after)
            found["ks"] = ks(one, other)
            with_missing = zip(tenths(one, other), self._missing, strict=True)
            found["psi"] = psi(*(np.append(counts, missing) for counts, missing in with_missing))
            if difference.total:
                low, high = self._least, self._most
                middle = {q: min(max(difference.quantile(q), low), high) for q in _QUANTILES}
                found["difference"] = {"least": low, **{f"q{100 * q:g}": each for q, each in middle.items()}}
                found["difference"]["most"] = high
        found["classes"] = None
        if self._cells:
            labels = in_order({label for cell in self._cells for label in cell})
            matrix = [[self._cells.get((a, b), 0) for b in labels] for a in labels]
            found["classes"] = {"labels": labels, "matrix": matrix}
            if found["psi"] is None:
                found["psi"] = psi(np.sum(matrix, axis=1), np.sum(matrix, axis=0))
        return found

    def chart(self) -> dict[str, Any] | None:
        """Return both histograms of numbers, or the matrix of classes."""
        if self._cells:
            found = self.result()["classes"]
            drawn = confusion_table(found["labels"], found["matrix"])
            return None if drawn is None else {**drawn, "axes": ["old", "new"]}
        if self._digits is None:
            return None
        first, *counts = together(*self._digits[:2])
        places = np.flatnonzero(counts[0] + counts[1])
        values = middles(places + first)
        finite = np.isfinite(values)
        places, values = places[finite], values[finite]
        if len(places) < 2:
            return None
        shares = np.cumsum((counts[0] + counts[1])[places])
        low, high = (float(values[np.searchsorted(shares, q * shares[-1])]) for q in (0.005, 0.995))
        edges = np.linspace(low, high, _BARS + 1) if high > low else np.array([values[0], values[-1]])
        made = [np.histogram(values, edges, weights=each[places])[0].astype(int).tolist() for each in counts]
        below, above = (
            int(sum(each[places][side].sum() for each in counts))
            for side in (values < edges[0], values > edges[-1])
        )
        return {**(histogram_bars(edges.tolist(), made[0], below, above) or {}), "other": made[1]}

    def _reason(self) -> str:
        if not self.rows:
            return "no rows"
        pairs = " and ".join(f"{old} and {new}" for old, new in sorted(self._kinds))
        return f"the columns hold {pairs}, so no two values are the same" if pairs else ""

    # ------------------------------------------------------------ the state

    def _clear(self) -> None:
        self.rows = self.changed = self.filled = self.emptied = 0
        self._kinds: set[tuple[str, str]] = set()
        self._digits = None
        self._missing = [0, 0]
        self._least, self._most = math.inf, -math.inf
        self._cells = {} if self.classes else None

    def _merge(self, other: Differences) -> None:
        self.rows += other.rows
        self.changed += other.changed
        self.filled += other.filled
        self.emptied += other.emptied
        self._kinds |= other._kinds
        self._missing = [a + b for a, b in zip(self._missing, other._missing, strict=True)]
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)
        if other._digits is not None:
            self._digits = self._digits or (Digits(), Digits(), Digits())
            for mine, its in zip(self._digits, other._digits, strict=True):
                mine.merge(its)
        if other._cells is None:
            self._cells = None
        elif self._cells is not None:
            self._count_cells((a, b, count) for (a, b), count in other._cells.items())

    def _state(self) -> Any:
        counts = [self.rows, self.changed, self.filled, self.emptied, *self._missing]
        digits = None if self._digits is None else [each.state() for each in self._digits]
        cells = (
            None if self._cells is None else [[*cell, self._cells[cell]] for cell in in_order(self._cells)]
        )
        return [counts, sorted(self._kinds), digits, [self._least, self._most], cells]

    def _restore(self, state: Any) -> None:
        counts, kinds, digits, (self._least, self._most), cells = state
        self.rows, self.changed, self.filled, self.emptied, *self._missing = counts
        self._kinds = {(old, new) for old, new in kinds}
        self._cells = None if cells is None else {(a, b): count for a, b, count in cells}
        if digits is not None:
            self._digits = Digits(), Digits(), Digits()
            for mine, its in zip(self._digits, digits, strict=True):
                mine.restore(its)


def _present(column: pa.Array) -> tuple[Array, int]:
    """Return the numbers of a column, and how many of its values are null or NaN."""
    values = numbers(column.drop_null() if column.null_count else column)
    with np.errstate(invalid="ignore", over="ignore"):
        if math.isnan(float(values.sum())):
            values = values[~np.isnan(values)]
    return values, len(column) - len(values)


def _difference(old: pa.Array, new: pa.Array) -> Array:
    """Return ``new - old`` of each row, NaN where one is no number."""
    if old.null_count or new.null_count:
        there = pc.and_(old.is_valid(), new.is_valid())
        found = np.full(len(old), np.nan)
        found[to_numpy(there)] = _difference(old.filter(there), new.filter(there))
        return found
    with np.errstate(invalid="ignore", over="ignore"):
        found = numbers(new) - numbers(old)
        if pa.types.is_integer(old.type) and pa.types.is_integer(new.type):
            exact = to_numpy(new).astype(np.int64) - to_numpy(old).astype(
                np.int64
            )  # right unless it is too big
            found = np.where(np.abs(found) < _WHOLE, exact, found)
    return found


def _has_classes(type_: pa.DataType) -> bool:
    return kind_of(type_) in ("text", "boolean", "null") or bool(pa.types.is_integer(type_))
