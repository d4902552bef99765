"""Steps that choose: the first rows, a share of them, those not seen before; and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ColumnExists, UnknownColumn
from headrace.plan.expressions import fields_of, named_fields, shape_of
from headrace.plan.steps.base import ALL_COLUMNS, NeededColumns, Step, V

if TYPE_CHECKING:
    import pyarrow as pa


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


# ---------------------------------------------------------------- columns; rows stay as they are


@dataclass(frozen=True, slots=True)
class SelectColumns(Step):
    """Keep these columns, in this order. ``asked_by``: the verb that the user called, if it was another."""

    columns: tuple[str, ...]
    asked_by: str = ""
    verb = "select_columns"
    one_to_one = True
    passes_values = True

    def reads(self) -> tuple[str, ...]:
        """Return the columns."""
        return self.columns

    def columns_after(self, names: list[str] | None) -> list[str]:
        """Return the columns."""
        return list(self.columns)

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return the columns."""
        return {name: types[name] for name in self.columns if name in types}

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return the columns, whether or not they are needed."""
        return NeededColumns(frozenset(self.columns))

    def values_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return those of the columns that are needed."""
        return NeededColumns(frozenset(filter(needed.has, self.columns)))

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return none: each of the columns was read."""
        return frozenset()

    def label(self) -> str:
        """Return ``select_columns(['a'])``, or ``unique(a)``."""
        return (
            f"{self.asked_by}({', '.join(self.columns)})"
            if self.asked_by
            else f"{self.verb}({list(self.columns)})"
        )

    def shape(self) -> dict[str, Any]:
        """Return the columns."""
        return {"verb": self.verb, "columns": list(self.columns)}


@dataclass(frozen=True, slots=True)
class DropColumns(Step):
    """Leave these columns out."""

    columns: tuple[str, ...]
    verb = "drop_columns"
    one_to_one = True
    passes_values = True

    def reads(self) -> tuple[str, ...]:
        """Return the columns."""
        return self.columns

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the others."""
        return None if names is None else [name for name in names if name not in self.columns]

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return the others."""
        return {name: type_ for name, type_ in types.items() if name not in self.columns}

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what is needed without the columns: they need not even be read."""
        dropped = frozenset(self.columns)
        only = needed.only - dropped if needed.only is not None else None
        return NeededColumns(only, needed.without | dropped)

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return the others."""
        return unread.difference(self.columns)

    def label(self) -> str:
        """Return ``drop_columns(['a'])``."""
        return f"{self.verb}({list(self.columns)})"

    def shape(self) -> dict[str, Any]:
        """Return the columns."""
        return {"verb": self.verb, "columns": list(self.columns)}


@dataclass(frozen=True, slots=True)
class RenameColumns(Step):
    """Give columns other names: pairs of the old one and the new one."""

    names: tuple[tuple[str, str], ...]
    verb = "rename_columns"
    one_to_one = True
    passes_values = True

    def reads(self) -> tuple[str, ...]:
        """Return the old names."""
        return tuple(old for old, _ in self.names)

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the new names in the places of the old ones."""
        if names is None:
            return None
        new = dict(self.names)
        renamed = [new.get(name, name) for name in names]
        for name in renamed:
            if renamed.count(name) > 1:
                raise UnknownColumn(f"{self.label()} would give two columns the name {name!r}.")
        return renamed

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return all of them."""
        new = dict(self.names)
        return {new.get(name, name): type_ for name, type_ in types.items()}

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what is needed by its old names, and all columns that are renamed."""
        old = {new: name for name, new in self.names}
        only = frozenset(old.get(name, name) for name in needed.only) if needed.only is not None else None
        return NeededColumns(only, needed.without - frozenset(old)).plus(self.reads())

    def values_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what is needed by its old names. A later step may make a column of such a name: that is another."""
        old = {new: name for name, new in self.names}
        gone = frozenset(self.reads()).difference(old)
        only = frozenset(old.get(name, name) for name in needed.only) if needed.only is not None else None
        return NeededColumns(only, frozenset(old.get(name, name) for name in needed.without - gone))

    def label(self) -> str:
        """Return ``rename_columns({'a': 'b'})``."""
        return f"{self.verb}({dict(self.names)})"

    def shape(self) -> dict[str, Any]:
        """Return the names."""
        return {"verb": self.verb, "names": dict(self.names)}


# ---------------------------------------------------------------- ``with_column``


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


@dataclass(frozen=True, slots=True)
class Provenance(WithColumn):
    """Add a column with what makes the rows, a text that is no part of what a run is recognised by."""

    verb = "provenance"

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ``ColumnExists`` if there is a column of that name."""
        if self.name in names:
            raise ColumnExists(
                f"provenance={self.name!r} would add a column, and there is one of that name already. Take another "
                "name, or leave the other out by drop_columns."
            )

    def shape(self) -> dict[str, Any]:
        """Return the name."""
        return {"verb": self.verb, "column": self.name}
