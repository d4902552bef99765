"""Steps that choose rows: the first ones, a share of them, those that were not seen before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.plan.steps.base import Step


@dataclass(frozen=True, slots=True)
class Limit(Step):
    """Let the first ``rows`` rows pass, in input order over the whole dataset."""

    rows: int
    verb = "limit"
    passes_values = True
    one_to_one = False

    @property
    def row_limit(self) -> int:
        """The number of rows."""
        return self.rows

    def rows_after(self, rows: int) -> int:
        """Return the number of rows, or less if fewer come."""
        return min(rows, self.rows)

    def label(self) -> str:
        """Return ``limit(10)``."""
        return f"{self.verb}({self.rows})"

    def shape(self) -> dict[str, Any]:
        """Return the number of rows."""
        return {"verb": self.verb, "rows": self.rows}


# ---------------------------------------------------------------- ``random_sample`` and ``train_test_split``


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


# ----------------------------------------------------------------
# ``key=`` of a verb that writes: rows whose key an earlier run has seen are left out, before anything else.


@dataclass(slots=True)
class SeenKeys:
    """The folder with the keys that earlier runs have seen; it is known once the output is open. "" for none."""

    folder: str = ""


@dataclass(frozen=True, slots=True)
class Unseen(Step):
    """Leave out the rows whose key, the values of these columns, finished runs into the output have seen."""

    key: tuple[str, ...]
    seen: SeenKeys = field(default_factory=SeenKeys, compare=False)
    verb = "key"
    passes_values = True
    changes_row_count = True

    def reads(self) -> tuple[str, ...]:
        """Return the columns of the key."""
        return self.key

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ``UnknownColumn``, unless there are none at all: files without rows may not say which they have."""
        if names:
            Step.check_columns(self, names)

    def label(self) -> str:
        """Return ``key(user, day)``."""
        return f"{self.verb}({', '.join(self.key)})"

    def shape(self) -> dict[str, Any]:
        """Return the columns."""
        return {"verb": self.verb, "columns": list(self.key)}
