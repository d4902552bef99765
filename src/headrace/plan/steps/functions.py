"""Steps that call a function: ``map_batches``, ``map``, ``flat_map``, ``filter``; ``accumulate`` with metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.core.door import completed
from headrace.core.model_ports import Accumulator, AccumulatorParts
from headrace.plan.expressions import fields_of, named_fields, shape_of
from headrace.plan.functions import Function
from headrace.plan.steps.base import ALL_COLUMNS, UNDECLARED, NeededColumns, Resources, Step, StepFunction, V

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


# ---------------------------------------------------------------- row by row

S = TypeVar("S", bound="RowStep")


class RowStep(Step):
    """A step with a function that gets one row, and sees all its columns."""

    __slots__ = ()
    row_by_row = True
    function: Function | None
    resources: Resources

    def functions(self) -> tuple[StepFunction, ...]:
        """Return the function."""
        label = self.label()
        return () if self.function is None else (StepFunction(self.function, label, label),)

    def needs(self) -> tuple[Resources, ...]:
        """Return what the function needs."""
        return (self.resources,)

    def without_remote(self: S) -> S:
        """Return the step for this machine."""
        local: S = replace(self, resources=msgspec.structs.replace(self.resources, remote=None))  # type: ignore[type-var]
        return local

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return None: the function decides."""
        return None

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return all: the function may look at any."""
        return ALL_COLUMNS

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return none: the function decides."""
        return frozenset()

    def label(self) -> str:
        """Return ``map(clean)``."""
        return f"{self.verb}({self.function.name if self.function else ''})"


@dataclass(frozen=True, slots=True)
class MapRows(RowStep):
    """One row in, one row out."""

    function: Function
    resources: Resources = UNDECLARED
    verb = "map"
    one_to_one = True


@dataclass(frozen=True, slots=True)
class FlatMap(RowStep):
    """One row in, any number of rows out."""

    function: Function
    resources: Resources = UNDECLARED
    verb = "flat_map"
    one_to_one = False
    makes_rows = True
    changes_row_count = True


@dataclass(frozen=True, slots=True)
class Filter(RowStep):
    """Keep the rows for which the function, or the Arrow expression, is true."""

    function: Function | None
    expression: Any = None
    resources: Resources = UNDECLARED
    verb = "filter"
    passes_values = True
    one_to_one = False
    changes_row_count = True

    def reads(self) -> tuple[str, ...]:
        """Return the columns that the expression is known to read."""
        return named_fields(self.expression) if self.function is None else ()

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ``UnknownColumn``, unless there are none at all: files without rows may not say which they have."""
        if names:
            Step.check_columns(self, names)

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the same columns."""
        return names

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return the same columns."""
        return types

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what the expression reads as well, if that can be told."""
        read = fields_of(self.expression, schema) if self.function is None else None
        return ALL_COLUMNS if read is None else needed.plus(read)

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return the same columns."""
        return unread

    def label(self) -> str:
        """Return ``filter(is_long)`` or ``filter((km > 1))``."""
        return f"filter({self.function.name if self.function else self.expression})"

    def shape(self) -> dict[str, Any]:
        """Return the expression, if it is one."""
        if self.function is not None:
            return {"verb": self.verb}
        return {"verb": self.verb, "expression": shape_of(self.expression)}


# ---------------------------------------------------------------- ``accumulate``


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

    from headrace.plan.fingerprint import fingerprint

    described = completed(metric, AccumulatorParts).describe()
    if described is not None:
        return msgspec.to_builtins(described, str_keys=True, enc_hook=str)
    kind = f"{type(metric).__module__}.{type(metric).__qualname__}"
    return {"kind": kind, "columns": list(metric.columns), "code": fingerprint(metric.empty())}
