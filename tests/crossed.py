"""Parameters and examples of which a part runs always, and all in the soak."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest


def crossed(*parameters: Iterable[Any]) -> list[Any]:
    """Return all combinations of values; those outside of a part that has every value are for the soak.

    >>> [each.values for each in crossed("ab", [1, 2, 3]) if not each.marks]
    [('a', 1), ('a', 3), ('b', 2)]
    """
    listed = [list(values) for values in parameters]
    step = min(map(len, listed))
    found = []
    for places in itertools.product(*(range(len(values)) for values in listed)):
        values = [each[place] for each, place in zip(listed, places, strict=True)]
        found.append(pytest.param(*values, marks=[] if sum(places) % step == 0 else [pytest.mark.soak]))
    return found


TIMES = int(os.environ.get("HEADRACE_TEST_EXAMPLES", "1"))
"""How many times as many examples of properties are tried as usual: many in the soak, and others each time."""


def few(examples: int) -> int:
    """Return how many examples of a property are tried."""
    return examples * TIMES


def sampled(first: Any, *others: Any) -> list[Any]:
    """Return values of one parameter: the first runs always, the others in the soak."""
    return [first, *(pytest.param(value, marks=pytest.mark.soak) for value in others)]
