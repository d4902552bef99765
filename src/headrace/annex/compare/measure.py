"""What is counted over pairs of rows: how columns differ, which rows do, the worst, and metrics by a label."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.accumulators.differences import Differences
from headrace.accumulators.ranking import AUROC
from headrace.core.arrow.batch import taken
from headrace.core.arrow.batch_formats import rows_of, to_numpy
from headrace.core.arrow.plain import kind_of, plain
from headrace.core.arrow.same import numbers, same
from headrace.errors import HeadraceError

# ---------------- metrics by a label, and whether their difference is more than chance

Floats = np.ndarray[Any, np.dtype[np.float64]]

_WIDE = 1.959963984540054  # standard errors to either side of 95 %
_PAIRS = 50_000  # rows of each class that errors of an AUROC are estimated by
_FEW = 50  # rows with which the binomial distribution is summed up


class Judged:
    """Counts one column of results, old and new, against labels.

    Fractions are judged by AUROC, where labels are 0 and 1; all other results by how often they are the label. Rows
    without a label or a result do not count.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._fractions = self._binary = True
        self._right = np.zeros((2, 2), np.int64)  # rows by: the old result is right, the new one is
        self._areas = AUROC("label", "score"), AUROC("label", "score")
        self._classes = np.zeros(2, np.int64)
        self._pairs = [
            np.zeros((0, 3)) for _ in range(2)
        ]  # of either class: what is drawn by, old and new score

    def add(self, label: pa.Array, old: pa.Array, new: pa.Array, first: int) -> None:
        """Count more rows, the first of which has the number ``first``."""
        label, old, new = plain(label), plain(old), plain(new)
        numbered = [kind_of(each.type) == "number" for each in (old, new)]
        there = pc.and_(pc.and_(old.is_valid(), new.is_valid()), label.is_valid())
        drawn = np.flatnonzero(to_numpy(there)) + first
        label, old, new = (each.filter(there) for each in (label, old, new))
        self._fractions &= all(
            pa.types.is_floating(each.type) or pa.types.is_decimal(each.type) for each in (old, new)
        )
        if not self._fractions:
            self._count_right(label, old, new)
        elif kind_of(label.type) in ("number", "boolean") and all(numbered):
            self._count_numbers(label, old, new, drawn)

    def _count_right(self, label: pa.Array, old: pa.Array, new: pa.Array) -> None:
        if {kind_of(old.type), kind_of(label.type)} == {"number", "boolean"}:
            label, old, new = (
                each.cast(pa.int8()) if pa.types.is_boolean(each.type) else each for each in (label, old, new)
            )
        if not kind_of(label.type) == kind_of(old.type) == kind_of(new.type):
            return
        self.rows += len(label)
        was, now = same(old, label).astype(np.int64), same(new, label).astype(np.int64)
        self._right += np.bincount(2 * was + now, minlength=4).reshape(2, 2)

    def _count_numbers(self, label: pa.Array, old: pa.Array, new: pa.Array, drawn: Any) -> None:
        truth = to_numpy(label).astype(np.float64) if pa.types.is_boolean(label.type) else numbers(label)
        was, now = numbers(old), numbers(new)
        there = ~(np.isnan(truth) | np.isnan(was) | np.isnan(now))
        if not there.all():
            truth, was, now, drawn = truth[there], was[there], now[there], drawn[there]
        self.rows += len(truth)
        positive = truth == 1
        self._binary &= bool((positive | (truth == 0)).all())
        if not self._binary:
            return
        for area, scores in zip(self._areas, (was, now), strict=True):
            area.update(pa.record_batch([pa.array(positive), pa.array(scores)], ["label", "score"]))
        by = _mixed(drawn)
        self._classes += [len(positive) - positive.sum(), positive.sum()]
        for side, mine in enumerate((~positive, positive)):
            self._draw(side, np.stack([by[mine], was[mine], now[mine]], axis=1))

    def _draw(self, side: int, rows: Floats) -> None:
        """Keep so many rows of a class as errors are estimated by: a random choice, whatever the order."""
        kept = np.concatenate([self._pairs[side], rows])
        if len(kept) > _PAIRS:
            kept = kept[np.argpartition(kept[:, 0], _PAIRS)[:_PAIRS]]
        self._pairs[side] = kept

    def merge(self, other: Judged) -> None:
        """Count what another has counted of other rows."""
        self.rows += other.rows
        self._fractions &= other._fractions
        self._binary &= other._binary
        self._right += other._right
        self._classes += other._classes
        if self._binary:
            for mine, its in zip(self._areas, other._areas, strict=True):
                mine.merge(its)
            for side in (0, 1):
                self._draw(side, other._pairs[side])

    def result(self) -> dict[str, Any] | None:
        """Return the metric of both sides, the difference with its interval at 95 %, and its p-value.

        None where there is nothing to judge by. AUROC: E. DeLong, D. DeLong, D. Clarke-Pearson, Comparing the areas
        under two or more correlated receiver operating characteristic curves, Biometrics 44 (1988); of more than
        50,000 rows of a class, errors are estimated by so many of them. Accuracy: Q. McNemar, Note on the sampling
        error of the difference between correlated proportions, Psychometrika 12 (1947).
        """
        if not self.rows:
            return None
        if not self._fractions:
            return self._accuracies()
        return self._areas_under() if self._binary else None

    def _accuracies(self) -> dict[str, Any]:
        n, lost, won = self.rows, int(self._right[1, 0]), int(self._right[0, 1])
        old, new = (int(each) / n for each in (self._right[1].sum(), self._right[:, 1].sum()))
        errors = [math.sqrt(share * (1 - share) / n) for share in (old, new)]
        error = math.sqrt(max(0.0, lost + won - (won - lost) ** 2 / n)) / n
        if lost + won <= _FEW:
            fewer = sum(math.comb(lost + won, k) for k in range(min(lost, won) + 1))
            p = min(1.0, 2 * fewer / 2 ** (lost + won))
        else:
            p = _chance((won - lost) / math.sqrt(lost + won))
        return _judgement("accuracy", n, (old, new), errors, error, p)

    def _areas_under(self) -> dict[str, Any] | None:
        values = [area.result() for area in self._areas]
        if values[0] is None or values[1] is None:
            return None
        negative, positive = (each[:, 1:] for each in self._pairs)
        above = [_placed(positive[:, side], negative[:, side]) for side in (0, 1)]
        below = [1 - _placed(negative[:, side], positive[:, side]) for side in (0, 1)]
        n, m = self._classes.tolist()
        covariance = _covariance(above) / m + _covariance(below) / n
        errors = np.sqrt(np.diag(covariance))
        error = math.sqrt(max(0.0, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]))
        apart = float(values[1]) - float(values[0])
        p = _chance(apart / error) if error else float(apart == 0)
        return _judgement("AUROC", self.rows, values, errors, error, p)


def _placed(scores: Floats, others: Floats) -> Floats:
    """Return for each score the share of the others that are below it; those that are equal count half."""
    ordered = np.sort(others)
    found: Floats = (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")) / (
        2 * len(ordered)
    )
    return found


def _covariance(values: list[Floats]) -> Floats:
    return np.cov(np.stack(values)) if len(values[0]) > 1 else np.zeros((2, 2))


def _chance(z: float) -> float:
    """Return the probability of so many standard errors or more to either side."""
    return math.erfc(abs(z) / math.sqrt(2))


def _judgement(metric: str, rows: int, values: Any, errors: Any, error: float, p: float) -> dict[str, Any]:
    old, new = (float(each) for each in values)
    sides = (
        {"value": value, "low": max(0.0, value - _WIDE * own), "high": min(1.0, value + _WIDE * own)}
        for value, own in zip((old, new), (float(each) for each in errors), strict=True)
    )
    apart = {"value": new - old, "low": new - old - _WIDE * error, "high": new - old + _WIDE * error}
    names = ("old", "new")
    found = {"metric": metric, "rows": rows, **dict(zip(names, sides, strict=True))}
    return {**found, "difference": apart, "p": p, "significant": p < 0.05}


def _mixed(places: Any) -> Floats:
    """Return a number from 0 to 1 for each place that has nothing to do with its neighbours'."""
    bits = places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(29)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(32)
    return np.asarray(bits.astype(np.float64) / 2.0**64)


Worst = tuple[float, int, dict[str, Any]]
"""By how much a row changed, its number, and what is shown of it."""


class Measure:
    """Counts pairs of rows; what several have counted can be merged.

    ``columns`` are compared. ``label``: a column of either side that results are judged by. Of each column the
    ``sample`` rows that changed most are kept: numbers by how far they are apart, other values in order.
    """

    def __init__(self, columns: Sequence[str], sample: int, label: str | None = None) -> None:
        self.columns = {name: Differences(name, name) for name in columns}
        self.rows = self.changed = 0
        self.worst: dict[str, list[Worst]] = {name: [] for name in columns}
        self.judged = {} if label is None else {name: Judged() for name in columns if name != label}
        self.lone = {"old": 0, "new": 0}  # rows that one side alone has
        self.lone_rows: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}  # some of them
        self._sample, self._label = sample, label

    def add(self, old: pa.RecordBatch, new: pa.RecordBatch, first: int) -> None:
        """Count pairs of rows; ``first`` is the number of the first one."""
        any_changed = np.zeros(new.num_rows, np.bool_)
        label = None
        if self._label is not None:
            label = (new if self._label in new.schema.names else old).column(self._label)
        for name, differences in self.columns.items():
            one, other = old.column(name), new.column(name)
            try:
                changed, by = differences.add(one, other)
                if label is not None and name in self.judged:
                    self.judged[name].add(label, one, other, first)
            except HeadraceError:
                raise
            except pa.ArrowException as error:
                raise HeadraceError(
                    f"compare: column {name!r} cannot be compared: {error}. Leave it out."
                ) from error
            if changed.any():
                any_changed |= changed
                if self._sample:
                    self._keep(name, np.flatnonzero(changed), by, one, new, first)
        self.rows += new.num_rows
        self.changed += int(np.count_nonzero(any_changed))

    def _keep(
        self,
        name: str,
        at: np.ndarray[Any, Any],
        by: np.ndarray[Any, Any] | None,
        old: pa.Array,
        new: pa.RecordBatch,
        first: int,
    ) -> None:
        far = np.ones(len(at)) if by is None else np.where(np.isnan(by), np.inf, np.abs(by))
        kept = self.worst[name]
        if len(kept) == self._sample:
            some = np.flatnonzero(far > kept[-1][0])
            if not len(some):
                return
            at, far, by = at[some], far[some], None if by is None else by[some]
        if len(at) > self._sample:
            some = np.flatnonzero(far >= np.partition(far, -self._sample)[-self._sample])
            some = np.sort(some[np.argsort(-far[some], kind="stable")[: self._sample]])
            at, far, by = at[some], far[some], None if by is None else by[some]
        before = [row["old"] for row in rows_of(taken(pa.record_batch([old], ["old"]), at))]
        for i, row in enumerate(rows_of(taken(new, at))):
            number = first + int(at[i])
            shown = {"row": number, "old": before[i], "new": row.pop(name)}
            if by is not None:
                shown["difference"] = None if np.isnan(by[i]) else float(by[i])
            kept.append((float(far[i]), number, {**shown, "inputs": row}))
        self.worst[name] = self._first(kept)

    def _first(self, rows: Sequence[Worst]) -> list[Worst]:
        return heapq.nsmallest(self._sample, rows, key=lambda each: (-each[0], each[1]))

    def add_lone(self, side: str, batch: pa.RecordBatch) -> None:
        """Count rows that one side alone has."""
        self.lone[side] += batch.num_rows
        self.lone_rows[side] += rows_of(batch.slice(0, max(0, self._sample - len(self.lone_rows[side]))))

    def empty(self) -> Measure:
        """Return one that has counted nothing."""
        return Measure(list(self.columns), self._sample, self._label)

    def merge(self, other: Measure) -> None:
        """Count what another has counted of other rows."""
        self.rows += other.rows
        self.changed += other.changed
        for name, differences in other.columns.items():
            self.columns[name].merge(differences)
            self.worst[name] = self._first([*self.worst[name], *other.worst[name]])
        for name, judged in other.judged.items():
            self.judged[name].merge(judged)
