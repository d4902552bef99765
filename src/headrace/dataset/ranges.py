"""Numbers that are not known for sure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """A number, and between which numbers it may lie."""

    low: float
    likely: float
    high: float

    def over(self, amount: Range) -> Range:
        """Return how long an amount takes at these rates."""
        return Range(*(a / r if r else math.inf for a, r in (
            (amount.low, self.high), (amount.likely, self.likely), (amount.high, self.low)
        )))  # fmt: skip

    def times(self, factor: Range) -> Range:
        """Return the product."""
        return Range(self.low * factor.low, self.likely * factor.likely, self.high * factor.high)

    def plus(self, number: float) -> Range:
        """Return the sum with a number that is known."""
        return Range(self.low + number, self.likely + number, self.high + number)

    @property
    def exact(self) -> bool:
        """True if there is no doubt."""
        return self.low == self.high
