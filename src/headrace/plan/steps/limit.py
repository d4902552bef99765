"""``limit``."""

from __future__ import annotations

from dataclasses import dataclass
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
