"""``key=`` of a verb that writes: rows whose key an earlier run has seen are left out, before anything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.plan.steps.base import Step


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
