"""Steps that look at one row after the other: ``map``, ``flat_map`` and ``filter``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.plan.expressions import fields_of, named_fields, shape_of
from headrace.plan.functions import Function
from headrace.plan.steps.base import ALL_COLUMNS, UNDECLARED, NeededColumns, Resources, Step, StepFunction, V

if TYPE_CHECKING:
    import pyarrow as pa


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
