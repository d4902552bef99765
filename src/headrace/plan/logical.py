"""The plan as the user wrote it: a source, a linear list of steps, maybe a sink."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.model_ports import Accumulator
from headrace.core.source_ports import Source
from headrace.core.target_ports import Sink
from headrace.errors import PlanError
from headrace.plan.requirements import Requirement
from headrace.plan.steps.accumulate import Accumulate
from headrace.plan.steps.base import Step

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Plan:
    """A source, a linear list of steps, maybe a sink."""

    source: Source
    steps: tuple[Step, ...] = ()
    sink: Sink | None = None
    output_schema: pa.Schema | None = None
    requirements: tuple[Requirement, ...] = ()

    def then(self, step: Step) -> Plan:
        """Return the plan with one step more; models that can run side by side become one step."""
        joined = self.steps[-1].joined(step) if self.steps else None
        if joined is not None:
            return replace(self, steps=(*self.steps[:-1], joined))
        if step.makes_rows and self.accumulates:
            raise PlanError(
                f"{step.label()} comes after {self.accumulates[-1].label()}, and may change which rows there are. "
                "The metrics would then count rows that are not written. Put accumulate after it, and keep the "
                "columns that the metrics need until there."
            )
        return replace(self, steps=(*self.steps, step))

    @property
    def accumulates(self) -> tuple[Accumulate, ...]:
        """The steps with metrics, in order."""
        return tuple(step for step in self.steps if isinstance(step, Accumulate))

    @property
    def metrics(self) -> tuple[tuple[str, Accumulator], ...]:
        """All metrics with their names, in order."""
        return tuple(metric for step in self.steps for metric in step.metrics)

    def without_metrics(self) -> Plan:
        """Return what is left when nobody asks for metrics."""
        return replace(self, steps=tuple(step for step in self.steps if not step.metrics))

    def into(self, sink: Sink, schema: pa.Schema | None = None) -> Plan:
        """Return the plan with its sink, and the output's schema if the user settled it."""
        return replace(self, sink=sink, output_schema=schema)
