"""How many tokens a job's language models would use, and what that would cost, from the answers of a sample."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.plan.steps.base import innermost
from headrace.plan.steps.predict import Prompt

if TYPE_CHECKING:
    from headrace.plan.logical import Plan


COUNTS = ("prompt_tokens", "completion_tokens")
ERRORS = 2.0
"""So many standard errors of the mean are the range on each side: 95 of 100 lie within."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of some rows, and how far the mean of all may be from it."""

    value: float
    doubt: float


@dataclass(frozen=True, slots=True)
class TokenUse:
    """What a row uses: tokens in and out, and what it costs; ``cost`` None: nobody said what tokens cost."""

    read: Mean
    written: Mean
    cost: Mean | None

    def of(self, rows: Range, *, exact: bool) -> dict[str, Any]:
        """Return what so many rows use; ``exact``: the sample was all of them."""

        def times(mean: Mean) -> Range:
            doubt = 0.0 if exact else mean.doubt
            return Range(max(0.0, mean.value - doubt), mean.value, mean.value + doubt).times(rows)

        spent = None if self.cost is None else times(self.cost)
        return {"read": times(self.read), "written": times(self.written), "spent": spent}


def token_use(plan: Plan, folder: str) -> TokenUse | None:
    """Return what a row of a sample in ``folder`` used; None where no model says it, or its counts were dropped."""
    import pyarrow.parquet as pq

    steps = map(innermost, plan.steps)
    models = [model for step in steps if isinstance(step, Prompt) for model in step.models]
    asked = {model.output: model.function.call for model in models}
    reads: list[float] = []
    writes: list[float] = []
    costs: list[float] = []
    prices = [_prices(call) for call in asked.values()]
    for path in sorted(glob.glob(os.path.join(folder, "*.parquet"))):
        file = pq.ParquetFile(path)
        names = [f"{output}_{count}" for output in asked for count in COUNTS]
        if not names or not set(names) <= set(file.schema_arrow.names):
            return None
        table = file.read(names)
        columns = [[value or 0 for value in table[name].to_pylist()] for name in names]
        for row in zip(*columns, strict=True):
            used = list(zip(row[::2], row[1::2], strict=True))
            reads.append(sum(read for read, _ in used))
            writes.append(sum(written for _, written in used))
            costs.append(
                sum(
                    read * price.get("input", 0.0) + written * price.get("output", 0.0)
                    for (read, written), price in zip(used, prices, strict=True)
                )
                / 1e6
            )
    if not reads:
        return None
    return TokenUse(mean_of(reads), mean_of(writes), mean_of(costs) if any(prices) else None)


def _prices(call: Any) -> dict[str, float]:
    return dict(call.asked.model.prices or {})


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of some values, and how far that of all may be from it.

    >>> mean_of([2.0, 2.0, 2.0, 2.0])
    Mean(value=2.0, doubt=0.0)
    """
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return Mean(mean, ERRORS * math.sqrt(variance / len(values)))


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
