"""``accumulate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.door import completed
from headrace.core.model_ports import Accumulator, AccumulatorParts
from headrace.plan.steps.base import NeededColumns, Step

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Accumulate(Step):
    """Have metrics see the columns as they are here; they count the rows that are written in the end.

    ``number``: so many such steps come before it in the plan. ``asked_by``: the verb that the user called.
    """

    metrics: tuple[tuple[str, Accumulator], ...]
    number: int = 0
    asked_by: str = "accumulate"
    # Of two models: a column that one lacks is that of all its results, ``old_label``, ``old_score``, as a struct.
    of_models: bool = False
    verb = "accumulate"
    one_to_one = True
    passes_values = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that some metric reads."""
        return tuple(dict.fromkeys(name for _, metric in self.metrics for name in metric.columns))

    def reads(self) -> tuple[str, ...]:
        """Return the columns that some metric reads."""
        return self.columns

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what the metrics read as well."""
        return needed.plus(self.columns)

    def label(self) -> str:
        """Return ``accumulate(auc, rows)``, or ``mean(x)`` for a verb of one number."""
        names = ", ".join(name for name, _ in self.metrics)
        return names if names.startswith(f"{self.asked_by}(") else f"{self.asked_by}({names})"

    def shape(self) -> dict[str, Any]:
        """Return the metrics with their settings."""
        return {"verb": self.verb, "metrics": {name: _shape(metric) for name, metric in self.metrics}}


def _shape(metric: Accumulator) -> Any:
    import msgspec

    from headrace.plan.fingerprint import fingerprint

    described = completed(metric, AccumulatorParts).describe()
    if described is not None:
        return msgspec.to_builtins(described, str_keys=True, enc_hook=str)
    kind = f"{type(metric).__module__}.{type(metric).__qualname__}"
    return {"kind": kind, "columns": list(metric.columns), "code": fingerprint(metric.empty())}
