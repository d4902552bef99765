"""How good rankings are, where rows belong to groups, such as the answers to one question."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace.accumulators.base import Array, Metric, Nan, codes_of, in_order
from headrace.errors import ArgumentError, BadInput


class _Grouped(Metric):
    """Keeps, of each group, what the first ``k`` places can hang on, and how much of its rows are relevant.

    That is: of the rows in the order of their scores those up to place k, with all that have the score of the last of
    them; and of the relevances the k biggest.
    """

    settings = ("group", "label", "score", "k")

    def __init__(self, group: str, label: str, score: str, *, k: int = 10, nan: Nan = "raise") -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ArgumentError(f"k={k!r} is not a whole number, 1 or more.")
        self.group, self.label, self.score, self.k = group, label, score, k
        self._begin([group, label, score], nan)

    def result(self) -> float | None:
        """Return the mean over groups; None if there is no group that counts."""
        found = [self._of_group(*self._groups[key]) for key in in_order(self._groups)]
        values = [value for value in found if value is not None]
        return math.fsum(values) / len(values) if values else None

    def _of_group(self, ranked: Array, relevant: Array, positives: int) -> float | None:
        raise NotImplementedError

    def _clear(self) -> None:
        # For each group: rows of (score, relevance) in order, the biggest relevances, how many are relevant.
        self._groups: dict[Any, tuple[Array, Array, int]] = {}

    def _add(self, arrays: dict[str, Array]) -> None:
        labels, scores = self._numbers(arrays, self.label), self._numbers(arrays, self.score)
        if labels.min() < 0 or not np.isfinite(labels).all():
            raise BadInput(
                f"{self!r}: relevances are finite and not negative, and column {self.label!r} has others."
            )
        codes, groups = codes_of(arrays[self.group])
        order = np.argsort(codes, kind="stable")
        pairs = np.stack([scores + 0.0, labels + 0.0], axis=1)[order]
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            rows = pairs[start:stop]
            self._take(groups[int(codes[order[start]])], rows, rows[:, 1], int(np.count_nonzero(rows[:, 1])))

    def _take(self, key: Any, ranked: Array, relevant: Array, positives: int) -> None:
        if key in self._groups:
            before = self._groups[key]
            ranked, relevant = np.concatenate([before[0], ranked]), np.concatenate([before[1], relevant])
            positives += before[2]
        ranked = ranked[np.lexsort((-ranked[:, 1], -ranked[:, 0]))]
        if len(ranked) > self.k:
            ranked = ranked[ranked[:, 0] >= ranked[self.k - 1, 0]]
        self._groups[key] = ranked, -np.sort(-relevant)[: self.k], positives

    def _merge(self, other: _Grouped) -> None:
        for key, found in other._groups.items():
            self._take(key, *found)

    def _state(self) -> Any:
        return [
            [key, ranked.tobytes(), relevant.tobytes(), positives]
            for key in in_order(self._groups)
            for ranked, relevant, positives in [self._groups[key]]
        ]

    def _restore(self, state: Any) -> None:
        self._groups = {
            key: (np.frombuffer(ranked).reshape(-1, 2), np.frombuffer(relevant), positives)
            for key, ranked, relevant, positives in state
        }

    def _reason(self) -> str:
        return "" if self._groups else "no rows"


class NDCG(_Grouped):
    """The normalised discounted cumulative gain of the first ``k`` places, averaged over the groups of ``group``.

    ``label`` names a column of relevances, 0 or more, which are the gains; ``score`` the one that ranks. Rows of
    equal score share their places, and a group without relevance has 0, as in scikit-learn. Of each group about 2 k
    rows are held until the end, 16 bytes each. ``nan="count"`` leaves rows with null or NaN out. Raises
    ``ArgumentError`` for a ``k`` that is no whole number; ``BadInput`` in a run for negative relevances.

    >>> import headrace as hr
    >>> data = hr.from_items([{"q": 1, "y": 0, "p": 0.9}, {"q": 1, "y": 1, "p": 0.2}])
    >>> data.evaluate(ndcg=hr.NDCG(group="q", label="y", score="p"))
    {'ndcg': 0.6309297535714575}
    """

    def _of_group(self, ranked: Array, relevant: Array, positives: int) -> float | None:
        discounts = 1 / np.log2(np.arange(2, max(len(ranked), len(relevant)) + 2))
        discounts[self.k :] = 0
        ideal = math.fsum(relevant * discounts[: len(relevant)])
        if not ideal:
            return 0.0
        starts = np.flatnonzero(np.concatenate([[True], np.diff(ranked[:, 0]) != 0]))
        sizes = np.diff(np.append(starts, len(ranked)))
        gains = np.add.reduceat(ranked[:, 1], starts) / sizes
        return math.fsum(gains * np.add.reduceat(discounts[: len(ranked)], starts)) / ideal


class RecallAtK(_Grouped):
    """The share of a group's relevant rows that are among its first ``k`` places.

    It is averaged over the groups of ``group``. ``label`` names a column that is not 0 where a row is relevant;
    ``score`` the one that ranks. Where rows of equal score compete for the last places, each has its share of them.
    Groups without a relevant row do not count; ``note`` and the summary have their number. ``nan="count"`` leaves
    rows with null or NaN out. Raises ``ArgumentError`` for a ``k`` that is no whole number; ``BadInput`` in a run for
    negative relevances.

    >>> import headrace as hr
    >>> data = hr.from_items([{"q": 1, "y": 0, "p": 0.9}, {"q": 1, "y": 1, "p": 0.2}])
    >>> data.evaluate(recall=hr.RecallAtK(group="q", label="y", score="p", k=1))
    {'recall': 0.0}
    """

    def _of_group(self, ranked: Array, relevant: Array, positives: int) -> float | None:
        if not positives:
            return None
        places = min(self.k, len(ranked))
        sure = ranked[:, 0] > ranked[places - 1, 0]
        found = float(np.count_nonzero(ranked[sure, 1]))
        tied = int(np.count_nonzero(~sure))
        left = places - int(np.count_nonzero(sure))
        return (found + int(np.count_nonzero(ranked[~sure, 1])) * left / tied) / positives

    def _reason(self) -> str:
        none = sum(not positives for _, _, positives in self._groups.values())
        return f"{none:,} groups without a relevant row left out" if none else super()._reason()
