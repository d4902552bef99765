"""Trees of decisions as arrays, where a child is the index of a node, or below zero for a leaf."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.core.files.model_files import NotReadable

Integers = np.ndarray[Any, np.dtype[np.int64]]

DEEPEST = 10_000
"""Levels of a tree: SHAP values need memory by the square of it, and stack for each."""


def check_depth(left: Integers, right: Integers) -> None:
    """Raise ``NotReadable`` for a tree of more than ``DEEPEST`` levels. Each node is the child of one at most.

    >>> import numpy as np
    >>> check_depth(np.array([1, -1]), np.array([-2, -3]))
    """
    if len(left) <= DEEPEST:
        return
    level = np.zeros(1, np.int64)
    for _ in range(DEEPEST):
        level = np.concatenate([left[level], right[level]])
        level = level[level >= 0]
        if not len(level):
            return
    raise NotReadable(f"it is more than {DEEPEST:,} levels deep")
