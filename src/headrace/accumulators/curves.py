"""Plain data for drawing what a metric has counted: few points, however many rows there were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.accumulators.base import Array

POINTS = 200  # of a curve
CLASSES = 20  # of a confusion matrix
BINS = 200  # of a histogram


def roc(negative: Array, positive: Array) -> dict[str, Any]:
    """Return the ROC curve of masses by rising score: the share of negative rows (x) and of positive ones (y).

    >>> roc(np.array([1, 1]), np.array([0, 2]))
    {'kind': 'roc', 'x': [0.0, 0.5, 1.0], 'y': [0.0, 1.0, 1.0]}
    """
    x = np.concatenate([[0.0], np.cumsum(negative[::-1].astype(np.float64))])
    y = np.concatenate([[0.0], np.cumsum(positive[::-1].astype(np.float64))])
    x, y = x / x[-1], y / y[-1]
    some = _some(x + y)
    return {"kind": "roc", "x": _plain(x[some]), "y": _plain(y[some])}


def precision_recall(negative: Array, positive: Array) -> dict[str, Any]:
    """Return precision (y) over recall (x) from masses by rising score; ``base`` is the share of positive rows.

    >>> precision_recall(np.array([1, 1]), np.array([0, 2]))
    {'kind': 'precision-recall', 'x': [1.0, 1.0], 'y': [0.66667, 0.5], 'base': 0.5}
    """
    right = np.cumsum(positive[::-1].astype(np.float64))
    wrong = np.cumsum(negative[::-1].astype(np.float64))
    there = right + wrong > 0
    right, wrong = right[there], wrong[there]
    x, y = right / right[-1], right / (right + wrong)
    some = _some(x + np.arange(len(x)) / len(x))
    base = float(right[-1] / (right[-1] + wrong[-1]))
    return {"kind": "precision-recall", "x": _plain(x[some]), "y": _plain(y[some]), "base": round(base, 5)}


def confusion(labels: Sequence[Any], matrix: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """Return the matrix of the most frequent classes; ``left_out`` counts the others.

    >>> confusion(["cat", 1], [[1, 0], [2, 3]])
    {'kind': 'confusion', 'labels': ['cat', '1'], 'matrix': [[1, 0], [2, 3]], 'left_out': 0}
    """
    if not labels:
        return None
    mass = [sum(row) + sum(other[i] for other in matrix) for i, row in enumerate(matrix)]
    some = sorted(sorted(range(len(labels)), key=lambda i: -mass[i])[:CLASSES])
    return {
        "kind": "confusion",
        "labels": [str(labels[i]) for i in some],
        "matrix": [[matrix[i][j] for j in some] for i in some],
        "left_out": len(labels) - len(some),
    }


def histogram(
    edges: Sequence[float], counts: Sequence[float], below: float, above: float
) -> dict[str, Any] | None:
    """Return a histogram; where there are many bins, neighbours are joined.

    >>> histogram([0.0, 1.0, 2.0], [4, 5], 0, 1)
    {'kind': 'histogram', 'edges': [0.0, 1.0, 2.0], 'counts': [4, 5], 'below': 0, 'above': 1}
    """
    step = -(-len(counts) // BINS)
    starts = range(0, len(counts), step)
    return {
        "kind": "histogram",
        "edges": [*(edges[i] for i in starts), edges[-1]],
        "counts": [sum(counts[i : i + step]) for i in starts],
        "below": below,
        "above": above,
    }


def _some(along: Array) -> Array:
    """Return the places of some points, evenly along a curve whose lengths up to each point are given."""
    if len(along) <= POINTS:
        return np.arange(len(along))
    wanted = np.linspace(along[0], along[-1], POINTS)
    return np.unique(np.minimum(np.searchsorted(along, wanted), len(along) - 1))


def _plain(values: Array) -> list[float]:
    return [round(float(value), 5) for value in values]
