"""Metrics of many groups at once: plain ones in arrays, any other as one metric for each group.

Both give the same to the bit. Groups have numbers, from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.accumulators.base import Array, Metric
from headrace.accumulators.exact import SCALE, ExactSums, add_at, column
from headrace.accumulators.moments import Averaged, Count, MinMax, Sum
from headrace.core.arrow.batch import taken
from headrace.core.ports import Accumulator


def many_of(metric: Accumulator) -> Many:
    """Return what counts for many groups."""
    own: Any = type(metric)
    for kind, many in _ARRAYS:
        if isinstance(metric, kind) and own.update is kind.update and own._add is kind._add:
            return many(metric)
    return Each(metric)


class Many:
    """Base of what counts for many groups. ``metric`` has the settings, and has seen no row."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric.empty()

    def update(self, batch: pa.RecordBatch, codes: Array, groups: Array) -> None:
        """Count the rows of a batch, whose group is ``groups[code]``; no group is there twice."""
        raise NotImplementedError

    def merge(self, other: Any, groups: Array) -> None:
        """Merge another of this class, whose first group is ``groups[0]`` here."""
        raise NotImplementedError

    def metrics(self, count: int) -> list[Any]:
        """Return the metrics of the first ``count`` groups."""
        raise NotImplementedError

    def state(self, order: list[int]) -> Any:
        """Return plain values for ``restore``, with the groups in this order."""
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        """Become what this is the state of."""
        raise NotImplementedError


class Each(Many):
    """A metric for each group."""

    def __init__(self, metric: Any, metrics: list[Any] | None = None) -> None:
        super().__init__(metric)
        self._metrics: list[Any] = metrics or []

    def update(self, batch: pa.RecordBatch, codes: Array, groups: Array) -> None:
        """Count the rows of a batch."""
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1)).tolist()
        ordered = batch if len(starts) == 1 else taken(batch, order)
        for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
            self._of(int(groups[codes[order[start]]])).update(ordered.slice(start, stop - start))

    def _of(self, group: int) -> Any:
        while len(self._metrics) <= group:
            self._metrics.append(self._metric.empty())
        return self._metrics[group]

    def merge(self, other: Each, groups: Array) -> None:
        """Merge another."""
        for group, metric in zip(groups.tolist(), other.metrics(len(groups)), strict=True):
            self._of(group).merge(metric)

    def metrics(self, count: int) -> list[Any]:
        """Return the metrics themselves."""
        if count:
            self._of(count - 1)
        return self._metrics[:count]

    def state(self, order: list[int]) -> Any:
        """Return the state of each."""
        return [self._of(group).to_bytes() for group in order]

    def restore(self, state: Any) -> None:
        """Become what this is the state of."""
        self._metrics = [self._metric.from_bytes(data) for data in state]


class Arrays(Many):
    """Numbers of rows, which is what ``Count`` needs."""

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._counts: dict[str, Array] = {}
        self._sums: dict[str, ExactSums] = {}

    def update(self, batch: pa.RecordBatch, codes: Array, groups: Array) -> None:
        """Count the rows of a batch."""
        arrays, kept = self._metric._read(batch) if self._metric.columns else ({}, None)
        if kept is not None:
            self._count("skipped", codes[~kept], groups)
            codes = codes[kept]
        if len(codes):
            self._add(arrays, codes, groups)
            self._count("rows", codes, groups)

    def _count(self, what: str, codes: Array, groups: Array) -> None:
        add_at(self._counts, what, groups, np.bincount(codes, minlength=len(groups)))

    def _sum(self, what: str, codes: Array, values: Array, groups: Array) -> None:
        self._sums.setdefault(what, ExactSums()).add(codes, values, groups)

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        """Count more than rows."""

    def merge(self, other: Arrays, groups: Array) -> None:
        """Merge another."""
        for what, counts in other._counts.items():
            add_at(self._counts, what, groups[: len(counts)], counts[: len(groups)])
        for what, sums in other._sums.items():
            self._sums.setdefault(what, ExactSums()).merge(sums, groups)

    def metrics(self, count: int) -> list[Any]:
        """Return new metrics with what was counted."""
        metrics = [self._metric.empty() for _ in range(count)]
        counts = {what: column(array, count)[:count].tolist() for what, array in self._counts.items()}
        for metric, skipped in zip(metrics, counts.get("skipped", []), strict=False):
            metric.skipped = skipped
        self._give(metrics, counts)
        return metrics

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        for metric, rows in zip(metrics, counts.get("rows", []), strict=False):
            metric._count = rows

    def state(self, order: list[int]) -> Any:
        """Return the arrays as bytes."""
        at = np.array(order, np.int64)
        counts = {
            what: column(array, len(at))[at].astype("<i8").tobytes()
            for what, array in sorted(self._counts.items())
            if array.any()
        }
        return {"counts": counts, "sums": {what: sums.state(at) for what, sums in sorted(self._sums.items())}}

    def restore(self, state: Any) -> None:
        """Become what this is the state of."""
        self._counts = {
            what: np.frombuffer(data, "<i8").astype(np.int64) for what, data in state["counts"].items()
        }
        for what, sums in state["sums"].items():
            self._sums.setdefault(what, ExactSums()).restore(sums)


class _Means(Arrays):
    """The sums of what averages."""

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        values, weights = self._metric._weighted(self._metric._values(arrays), arrays, self._metric.weight)
        if weights is not None:
            self._sum("mass", codes, weights, groups)
        self._sum("sum", codes, values, groups)

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        if "sum" in self._sums:
            weights = self._sums.get("mass")
            masses = weights.totals(len(metrics)) if weights else [rows << SCALE for rows in counts["rows"]]
            for metric, total, mass in zip(
                metrics, self._sums["sum"].sums(len(metrics)), masses, strict=False
            ):
                metric._sum, metric._mass = total, mass


class _Totals(Arrays):
    """The sums of ``Sum``."""

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        values = arrays[self._metric.column]
        if self._metric.weight is not None or values.dtype.kind not in "iub" or values.ndim > 1:
            numbers = self._metric._numbers(arrays, self._metric.column)
            values, _ = self._metric._weighted(numbers, arrays, self._metric.weight)
            self._count("floats", codes, groups)
        elif (
            not -(2**53) <= int(values.min()) <= int(values.max()) <= 2**53
        ):  # float64 holds them in two parts
            self._sum("sum", codes, (values >> 32).astype(np.float64) * 2.0**32, groups)
            values = values & 0xFFFFFFFF
        self._sum("sum", codes, values.astype(np.float64), groups)

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        if "sum" in self._sums:
            floats = counts.get("floats", [0] * len(metrics))
            for metric, total, there in zip(
                metrics, self._sums["sum"].sums(len(metrics)), floats, strict=False
            ):
                metric._sum, metric._floats = total, there > 0


class _Ends(Arrays):
    """The ends of ``MinMax``, for each dtype that there was."""

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._ends: dict[str, tuple[Array, Array]] = {}

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        values = self._metric._as_they_are(arrays)
        values = values + 0.0 if values.dtype.kind == "f" else values  # there is one zero
        self._widen(values.dtype.str, groups[codes], values, values)

    def _widen(self, dtype: str, groups: Array, low: Array, high: Array) -> None:
        size = int(groups.max()) + 1 if len(groups) else 0
        before = self._ends.get(dtype, (None, None))
        ends = [column(end, size, dtype, fill) for end, fill in zip(before, _span(dtype), strict=True)]
        np.minimum.at(ends[0], groups, low)
        np.maximum.at(ends[1], groups, high)
        self._ends[dtype] = ends[0], ends[1]

    def merge(self, other: Any, groups: Array) -> None:
        """Merge another."""
        super().merge(other, groups)
        for dtype, (low, high) in other._ends.items():
            there = groups[: len(low)]
            self._widen(dtype, there, low[: len(there)], high[: len(there)])

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        for _, (lows, highs) in sorted(self._ends.items()):
            for metric, low, high in zip(metrics, lows.tolist(), highs.tolist(), strict=False):
                if low <= high:  # else the group has none of them
                    metric._widen(low, high)

    def state(self, order: list[int]) -> Any:
        """Return the arrays as bytes."""
        ends = {
            dtype: [
                column(end, len(order), dtype, fill)[order].tobytes()
                for end, fill in zip(both, _span(dtype), strict=True)
            ]
            for dtype, both in sorted(self._ends.items())
        }
        return {**super().state(order), "ends": ends}

    def restore(self, state: Any) -> None:
        """Become what this is the state of."""
        super().restore(state)
        self._ends = {
            dtype: (np.frombuffer(low, dtype).copy(), np.frombuffer(high, dtype).copy())
            for dtype, (low, high) in state["ends"].items()
        }


def _span(dtype: str) -> tuple[Any, Any]:
    """Return what every value of a dtype is at most, and at least."""
    kind = np.dtype(dtype)
    if kind.kind in "fb":
        return (np.inf, -np.inf) if kind.kind == "f" else (True, False)
    return np.iinfo(kind).max, np.iinfo(kind).min


_ARRAYS: tuple[tuple[type[Metric], type[Arrays]], ...] = (
    (Count, Arrays),
    (Sum, _Totals),
    (Averaged, _Means),
    (MinMax, _Ends),
)
