"""``random_sample`` and ``train_test_split``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.plan.steps.base import Step


@dataclass(frozen=True, slots=True)
class RandomSample(Step):
    """Keep the rows whose share lies from ``low`` to below ``high``; a row's share is a hash of where it stands.

    ``number``: so many samples are drawn before this one in the plan, with the same seed or not. Each draws anew.
    ``call`` is what messages call the step.
    """

    low: float
    high: float
    seed: int
    number: int
    call: str
    verb = "random_sample"
    passes_values = True
    one_to_one = False
    changes_row_count = True

    def label(self) -> str:
        """Return ``random_sample(0.1, seed=0)``."""
        return self.call

    def shape(self) -> dict[str, Any]:
        """Return which rows are kept."""
        part = {"low": self.low, "high": self.high, "seed": self.seed, "number": self.number}
        return {"verb": self.verb, **part}
