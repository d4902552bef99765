"""How numbers are spread: their counts by leading digits, in bins that any order of merging fills alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.accumulators.base import Array
from headrace.accumulators.scores import by_bits, packed, unpacked

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
