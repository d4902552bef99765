"""Scores of two classes, as counts per distinct score: all that ranking metrics have to know.

Up to a limit of distinct scores they are stored exactly. Beyond it, or where so set, neighbouring scores share a
bin whose borders depend on nothing but the score, so that any order of merging ends in the same bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.accumulators.base import Array
from headrace.accumulators.exact import as_float, fixed_by, from_state, to_state

GATHERED = 1 << 18  # rows that wait until they are sorted together
_KEPT_BITS = 20  # of a float32, where bins follow its digits: 2,048 of them from one power of two to the next


@dataclass(frozen=True, slots=True)
class Even:
    """``count`` bins of equal width from ``low`` to ``high``; what lies beyond falls into the outermost."""

    count: int
    low: float
    high: float

    def __call__(self, scores: Array) -> Array:
        """Return the number of each score's bin."""
        scale = self.count / (self.high - self.low)
        with np.errstate(over="ignore"):
            return np.asarray(np.clip((scores - self.low) * scale, 0, self.count - 1), np.int64)


def by_digits(scores: Array) -> Array:
    """Return the numbers of bins that are finer the nearer they are to 0, about 0.05 % of the score wide."""
    return np.asarray(by_bits(scores) >> (32 - _KEPT_BITS), np.int64)


def by_bits(scores: Array) -> Array:
    """Return int32 numbers in the order of the scores, which are rounded to float32."""
    with np.errstate(over="ignore"):
        rounded = scores.astype(np.float32)
    rounded += np.float32(0)  # there is one zero
    bits = rounded.view(np.int32)
    if len(bits) and bits.min() < 0:
        bits = np.where(bits < 0, -1 - (bits & 0x7FFFFFFF), bits)
    return np.asarray(bits)


class Counted:
    """Rows of one class: distinct keys in order, and how many rows each has. With weights, keys are rows of two.

    What is added is sorted in with what was there when it has become as much, so that many small parts cost little.
    """

    def __init__(self, width: int) -> None:
        self.keys: Array = np.zeros((0, width) if width > 1 else 0)
        self.counts: Array = np.zeros(0, np.int64)
        self._parts: list[tuple[Array, Array]] = []
        self._size = 0

    def add(self, keys: Array, counts: Array | None) -> None:
        """Count keys in, in any order; each once if there are no ``counts``, else they are distinct and in order."""
        if not len(keys):
            return
        self._parts.append(_counted(keys, None) if counts is None else (keys, counts))
        self._size += len(self._parts[-1][0])
        if self._size > max(GATHERED, len(self.keys)):
            self.settle()

    def settle(self) -> Counted:
        """Bring everything in order."""
        if self._parts:
            parts = [(self.keys, self.counts), *self._parts] if len(self.keys) else self._parts
            if len(parts) == 1:
                self.keys, self.counts = parts[0]
            else:
                self.keys, self.counts = _counted(*map(np.concatenate, zip(*parts, strict=True)))
            self._parts, self._size = [], 0
        return self

    def clear(self) -> None:
        """Forget everything."""
        self.__init__(self.keys.shape[1] if self.keys.ndim == 2 else 1)  # type: ignore[misc]


def _counted(keys: Array, counts: Array | None) -> tuple[Array, Array]:
    """Return distinct keys in order, and the sum of the counts of each (1 for each without any)."""
    if keys.ndim == 2:
        order: Array = np.lexsort((keys[:, 1], keys[:, 0]))
        keys = keys[order]
        new = np.any(keys[1:] != keys[:-1], axis=1)
    else:
        order = np.argsort(keys, kind="stable") if counts is not None else np.zeros(0, np.int64)
        keys = keys[order] if counts is not None else np.sort(keys)
        new = keys[1:] != keys[:-1]
    starts = np.concatenate([[0], np.flatnonzero(new) + 1])
    if counts is None:
        return keys[starts], np.diff(np.append(starts, len(keys)))
    return keys[starts], np.add.reduceat(counts[order], starts)


class Scores:
    """What is known of the scores of two classes. ``binner`` None: exact, as long as there are ``limit`` at most."""

    def __init__(self, limit: int, binner: Callable[[Array], Array] | None, *, weighted: bool) -> None:
        self._limit = limit
        self._always = binner is not None
        self._binner = binner or by_digits
        self._weighted = weighted
        self.binned = self._always
        self._waiting: list[tuple[Array, Array, Array | None]] = []
        self._rows = 0
        self._exact = [Counted(2 if weighted else 1) for _ in range(2)]
        # The counts; with weights, their sums in units of 2**-1074.
        self._bins: list[dict[int, int]] = [
            {},
            {},
        ]

    def add(self, scores: Array, labels: Array, weights: Array | None) -> None:
        """Take more rows."""
        if self.binned:
            scores = self._binner(scores)
        self._waiting.append((scores, labels, weights))
        self._rows += len(scores)
        if self._rows >= GATHERED:
            self._count()

    def _count(self) -> None:
        """Count the rows that wait."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if not waiting:
            return
        scores = np.concatenate([each for each, _, _ in waiting])
        labels = np.concatenate([each for _, each, _ in waiting])
        weights = (
            np.concatenate([each for _, _, each in waiting if each is not None]) if self._weighted else None
        )
        if weights is not None:
            there = weights > 0
            scores, labels, weights = scores[there], labels[there], weights[there]
        for label in (0, 1):
            mine = labels if label else ~labels
            some = weights[mine] if weights is not None else None
            if self.binned:
                self._add_binned(label, scores[mine], None, some)
            else:
                keys = scores[mine] + 0.0  # there is one zero
                self._exact[label].add(np.stack([keys, some], axis=1) if some is not None else keys, None)
        self._keep_to_limit()

    def settle(self) -> None:
        """Bring everything into the one form that the rows so far have."""
        self._count()
        for each in self._exact:
            each.settle()
        self._keep_to_limit()

    def _keep_to_limit(self) -> None:
        if not self.binned and any(len(each.keys) > self._limit for each in self._exact):
            self._bin()

    def _bin(self) -> None:
        self.binned = True
        for label, each in enumerate(self._exact):
            self._add_exact(label, each.settle())
            each.clear()

    def _add_exact(self, label: int, exact: Counted) -> None:
        if self._weighted:
            self._add_binned(label, self._binner(exact.keys[:, 0]), exact.counts, exact.keys[:, 1])
        else:
            self._add_binned(label, self._binner(exact.keys), exact.counts, None)

    def _add_binned(self, label: int, keys: Array, counts: Array | None, weights: Array | None) -> None:
        if not len(keys):
            return
        low = int(keys.min())
        size = int(keys.max()) - low + 1
        if weights is not None:
            distinct, places = np.unique(keys, return_inverse=True)
            present = distinct
            if counts is None:
                found = fixed_by(places, weights, len(distinct))
            else:  # a weight that occurs so many times
                found = [0] * len(distinct)
                for place, weight, count in zip(places.tolist(), weights, counts.tolist(), strict=True):
                    found[place] += fixed_by(np.zeros(1, np.int64), np.array([weight]), 1)[0] * count
        elif size <= 4 * len(keys) + 65_536 and counts is None:
            dense = np.bincount(keys - low, minlength=size)
            at = np.flatnonzero(dense)
            present, found = at + low, dense[at].tolist()
        else:
            present, sums = _counted(keys, counts)
            found = sums.tolist()
        bins = self._bins[label]
        for key, number in zip(present.tolist(), found, strict=True):
            bins[key] = bins.get(key, 0) + number

    def merge(self, other: Scores) -> None:
        """Take in what another of the same settings has seen."""
        self._count()
        other.settle()
        if other.binned and not self.binned:
            self._bin()
        for label, each in enumerate(other._exact):
            if self.binned:
                self._add_exact(label, each)
            else:
                self._exact[label].add(each.keys, each.counts)
            bins = self._bins[label]
            for key, number in other._bins[label].items():
                bins[key] = bins.get(key, 0) + number
        self._keep_to_limit()

    def masses(self) -> tuple[Array, Array]:
        """Return, for each distinct score or bin in order, how many rows it has of either class."""
        self.settle()
        if self.binned:
            keys = sorted({*self._bins[0], *self._bins[1]})
            result = [[bins.get(key, 0) for key in keys] for bins in self._bins]
            if self._weighted:
                return np.array([as_float(n) for n in result[0]]), np.array([as_float(n) for n in result[1]])
            return np.array(result[0], np.int64), np.array(result[1], np.int64)
        columns = [each.keys[:, 0] if self._weighted else each.keys for each in self._exact]
        distinct = np.unique(np.concatenate(columns))
        found = []
        for each, column in zip(self._exact, columns, strict=True):
            mass = each.counts * each.keys[:, 1] if self._weighted else each.counts
            dense = np.zeros(len(distinct), mass.dtype)
            np.add.at(dense, np.searchsorted(distinct, column), mass)
            found.append(dense)
        return found[0], found[1]

    def state(self) -> list[Any]:
        """Return plain values; the same for the same rows in any order."""
        self.settle()
        if self.binned:
            return [True, [_bins_state(bins, self._weighted) for bins in self._bins]]
        return [False, [[packed(each.keys.ravel()), packed(each.counts)] for each in self._exact]]

    def restore(self, state: list[Any]) -> None:
        """Take the state of another."""
        self.binned, halves = state
        if self.binned:
            self._bins = [_bins_from(half, self._weighted) for half in halves]
            return
        for each, (keys, counts) in zip(self._exact, halves, strict=True):
            scores = unpacked(keys).astype(np.float64)
            each.keys = scores.reshape(-1, 2) if self._weighted else scores
            each.counts = unpacked(counts).astype(np.int64)


def _bins_state(bins: dict[int, int], weighted: bool) -> list[Any]:
    keys = np.array(sorted(bins), np.int64)
    sums = [bins[key] for key in keys.tolist()]
    steps = packed(np.diff(keys, prepend=0))
    return [steps, [to_state(each) for each in sums] if weighted else packed(np.array(sums, np.int64))]


def _bins_from(state: list[Any], weighted: bool) -> dict[int, int]:
    keys = np.cumsum(unpacked(state[0]).astype(np.int64)).tolist()
    sums = map(from_state, state[1]) if weighted else unpacked(state[1]).tolist()
    return dict(zip(keys, sums, strict=True))


def packed(values: Array) -> list[Any]:
    """Return an array's bytes in the narrowest dtype that loses nothing, with that dtype's name."""
    narrow = values
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        narrow = single if (single == values).all() else values
    elif len(values):
        least = np.promote_types(np.min_scalar_type(values.min()), np.min_scalar_type(values.max()))
        narrow = values.astype(least) if least.kind in "iu" else values
    return [narrow.dtype.str, narrow.tobytes()]


def unpacked(state: list[Any]) -> Array:
    """Return the array that ``packed`` has made bytes of."""
    dtype, data = state
    return np.frombuffer(data, np.dtype(dtype))
