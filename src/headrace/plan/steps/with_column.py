"""``with_column``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.plan.expressions import fields_of, named_fields, shape_of
from headrace.plan.steps.base import ALL_COLUMNS, NeededColumns, Step, V

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class WithColumn(Step):
    """Add the column ``name``, or replace it, by what an Arrow expression of the others gives."""

    name: str
    expression: Any
    verb = "with_column"
    one_to_one = True
    passes_values = True

    def reads(self) -> tuple[str, ...]:
        """Return the columns that the expression is known to read."""
        return named_fields(self.expression)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ``UnknownColumn``, unless there are none at all: files without rows may not say which they have."""
        if names:
            Step.check_columns(self, names)

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the columns with this one: in its place if it was there, else at the end."""
        return names if names is None or self.name in names else [*names, self.name]

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return the others."""
        return {name: known for name, known in types.items() if name != self.name}

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what the expression reads as well. A column that is replaced is read: it keeps its place."""
        read = fields_of(self.expression, schema)
        return ALL_COLUMNS if read is None else needed.plus(read)

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return the others: the column is made."""
        return unread - {self.name}

    def label(self) -> str:
        """Return ``with_column('miles')``: the text of an expression can be long."""
        return f"{self.verb}({self.name!r})"

    def shape(self) -> dict[str, Any]:
        """Return the name and the expression."""
        return {"verb": self.verb, "column": self.name, "expression": shape_of(self.expression)}
