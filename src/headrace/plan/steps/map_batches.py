"""``map_batches``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.plan.functions import Function
from headrace.plan.steps.base import ALL_COLUMNS, UNDECLARED, NeededColumns, Resources, Step, StepFunction

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.arrow.batch_formats import BatchFormat


@dataclass(frozen=True, slots=True)
class MapBatches(Step):
    """Batch in, batch or batches out; ``max_in_flight`` of them at a time, if the user said how many.

    ``batch_size`` in rows, or ``batch_bytes``; with neither, the workers find the fastest size. ``columns``: the
    columns that the function gets (None: all). ``writable``: it gets copies, to be written to.
    """

    function: Function
    batch_size: int | None
    batch_format: BatchFormat
    columns: tuple[str, ...] | None
    resources: Resources = UNDECLARED
    max_in_flight: int | None = None
    batch_bytes: int | None = None
    writable: bool = False
    verb = "map_batches"
    one_to_one = False
    makes_rows = True

    def functions(self) -> tuple[StepFunction, ...]:
        """Return the function, as the user wants it called."""
        label = self.label()
        size = self.batch_size, self.batch_bytes, self.batch_format
        return (StepFunction(self.function, label, label, self.max_in_flight, *size),)

    def needs(self) -> tuple[Resources, ...]:
        """Return what the function needs."""
        return (self.resources,)

    def without_remote(self) -> MapBatches:
        """Return the step for this machine."""
        return replace(self, resources=msgspec.structs.replace(self.resources, remote=None))

    def reads(self) -> tuple[str, ...]:
        """Return ``columns=``."""
        return self.columns or ()

    def columns_after(self, names: list[str] | None) -> None:
        """Return None: the function decides."""

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return ``columns=``, or all."""
        return ALL_COLUMNS if self.columns is None else NeededColumns(frozenset(self.columns))

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return none: the function decides."""
        return frozenset()

    def label(self) -> str:
        """Return ``map_batches(clean)``."""
        return f"{self.verb}({self.function.name})"

    def shape(self) -> dict[str, Any]:
        """Return the form of the batches and which columns they have."""
        columns = list(self.columns) if self.columns else None
        return {"verb": self.verb, "format": self.batch_format, "columns": columns}
