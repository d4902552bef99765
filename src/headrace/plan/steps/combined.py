"""Datasets that have steps, as one: ``union`` has one behind the other, ``zip`` side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ColumnExists, HeadraceError, UnknownColumn
from headrace.plan.steps.base import ALL_COLUMNS, DatasetStep, NeededColumns, Step, V

if TYPE_CHECKING:
    import pyarrow as pa


Columns = tuple[tuple[str, "pa.DataType | None"], ...]


@dataclass(frozen=True, slots=True)
class Conform(Step):
    """Give the rows of one dataset the columns that those of all have, in one order.

    ``columns`` with their types, None where only running tells; None for all if nobody knows which there are: rows
    go on as they are. ``forms`` are those of columns that may hold nulls, see ``core.arrow.forms``.
    """

    columns: Columns | None = None
    forms: tuple[tuple[str, str], ...] = ()
    verb = "union"
    one_to_one = True

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the columns of all, if they are known."""
        return names if self.columns is None else [name for name, _ in self.columns]

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return the same: those that are added have no values."""
        return types if self.columns is None else {n: types[n] for n, _ in self.columns if n in types}

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return the same columns."""
        return unread

    def types_after(self, types: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the types of columns afterwards, as far as they are known."""
        if self.columns is None:
            return types
        known = {name: types.get(name) if type_ is None else type_ for name, type_ in self.columns}
        return {name: type_ for name, type_ in known.items() if type_ is not None}

    def label(self) -> str:
        """Return ``union``."""
        return self.verb


@dataclass(frozen=True, slots=True)
class Union(Conform):
    """Where datasets become one: all steps before belong to one of them, or some. ``schemas`` are their sources'."""

    schemas: tuple[pa.Schema, ...] = ()

    @property
    def settled(self) -> bool:
        """True if all columns and their types are known before anything runs."""
        return self.columns is not None and all(type_ is not None for _, type_ in self.columns)

    def shape(self) -> dict[str, Any]:
        """Return how many datasets there are."""
        return {"verb": self.verb, "datasets": len(self.schemas)}


@dataclass(frozen=True, slots=True)
class OnBranch(DatasetStep):
    """A step that only rows of some neighbouring datasets go through: from number ``first`` to before ``stop``.

    What it does with columns, only its ``step`` tells: each dataset has others.
    """

    first: int
    stop: int
    verb = "union"

    @property
    def of(self) -> str:
        """Which datasets it is of."""
        first, last = self.first + 1, self.stop
        return f"dataset {last}" if first == last else f"datasets {first} to {last}"

    def shape(self) -> dict[str, Any]:
        """Return that of the step, and of which datasets it is."""
        return {**self.step.shape(), "datasets": [self.first, self.stop]}


Path = list[tuple[int, Step]]
"""The steps that rows of one dataset go through, each with its index in the plan."""


def union_in(steps: Sequence[Step]) -> Union | None:
    """Return where datasets with steps of their own become one; None in a plan where there are none."""
    return next((step for step in reversed(steps) if isinstance(step, Union)), None)


def paths_of(steps: Sequence[Step]) -> list[tuple[pa.Schema, Path]]:
    """Return, for each dataset of a union, the schema of its source and its rows' way; [] where there is no union."""
    whole = union_in(steps)
    if whole is None:
        return []
    return [(schema, _path(steps, number)) for number, schema in enumerate(whole.schemas)]


def _path(steps: Sequence[Step], number: int) -> Path:
    path: Path = []
    for i, step in enumerate(steps):
        if goes_through(step, number):
            inner = step.step if isinstance(step, OnBranch) else step
            path.append((i, Conform(inner.columns, inner.forms) if isinstance(inner, Conform) else inner))
    return path


def goes_through(step: Step, number: int) -> bool:
    """Say whether rows of a dataset go through a step."""
    return not isinstance(step, OnBranch) or step.first <= number < step.stop


def shifted(step: Step, first: int, count: int) -> OnBranch:
    """Return a step of a dataset, or of a union of ``count``, as a step of a union where these begin at ``first``."""
    if isinstance(step, OnBranch):
        return OnBranch(step.step, first + step.first, first + step.stop)
    return OnBranch(step, first, first + count)


def in_dataset(number: int, error: HeadraceError) -> HeadraceError:
    """Return an error that says which dataset of a union it is about."""
    return type(error)(f"Dataset {number + 1} of the union: {error}")


# ---------------------------------------------------------------- ``zip``

# Rows stand side by side from the start, so that pairs are never sought. In between, a column's name says whose it
# is: ``2:id`` is the column ``id`` of dataset 2. ``1:2:id`` is that of dataset 2 in dataset 1, which is such a zip
# itself.

Named = tuple[tuple[str, str], ...]
"""Columns by their old names, with their new ones."""


@dataclass(frozen=True, slots=True)
class _Renaming(Step):
    """Give all columns other names, as far as they are there: those that nobody needs are not read.

    ``names`` None: the columns that a function makes are not known before it runs.
    """

    names: Named | None
    datasets: int
    one_to_one = True
    passes_values = True

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the new names."""
        if names is None or self.names is None:
            return None
        there = frozenset(names)
        return [new for old, new in self.names if old in there]

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return all by their new names, if they are known."""
        return {new: types[old] for old, new in self.names or () if old in types}

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what is needed by its old names. Where these are not known, all is: names depend on all columns."""
        if self.names is None:
            return ALL_COLUMNS
        return NeededColumns(frozenset(old for old, new in self.names if needed.has(new)))

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return the same columns by their new names."""
        return frozenset(new for old, new in self.names or () if old in unread)

    def shape(self) -> dict[str, Any]:
        """Return how many datasets there are."""
        return {"verb": self.verb, "datasets": self.datasets}


@dataclass(frozen=True, slots=True)
class Apart(_Renaming):
    """Call each column of the pairs that were read by whose it is, so that steps of one dataset follow."""

    verb = "zip"

    def label(self) -> str:
        """Return ``zip(2 datasets)``."""
        return f"{self.verb}({self.datasets} datasets)"


@dataclass(frozen=True, slots=True)
class Zip(_Renaming):
    """Where the columns of all datasets become those of one; a name that was there before gets ``_1``, ``_2``, …."""

    verb = "zip"

    def label(self) -> str:
        """Return ``zip``."""
        return self.verb


@dataclass(frozen=True, slots=True)
class OnSide(DatasetStep):
    """A step that sees the columns of one dataset, whose names begin with ``prefix``; the others are carried.

    It gives row i for row i: what a function returns is looked at when it runs. ``schema`` is that of the dataset's
    source.
    """

    prefix: str
    schema: pa.Schema
    verb = "zip"
    one_to_one = True
    makes_rows = False
    changes_row_count = False

    @property
    def of(self) -> str:
        """Which dataset it is of: ``dataset 2``, or ``dataset 2 of dataset 1``."""
        return " of ".join(f"dataset {number}" for number in reversed(self.prefix.split(":")[:-1]))

    @property
    def passes_values(self) -> bool:  # type: ignore[override]
        """As the step's."""
        return self.step.passes_values

    def rows_after(self, rows: int) -> int | None:
        """As the step's: where its function may give another number of rows, it has to be run."""
        return self.step.rows_after(rows)

    # ------------------------------------------------------------ columns

    def reads(self) -> tuple[str, ...]:
        """Return the columns that the step asks for by name."""
        return tuple(map(self._outer, self.step.reads()))

    def check_columns(self, names: Sequence[str]) -> None:
        """Ask the step about the columns of its dataset."""
        try:
            self.step.check_columns(self._own(names))
        except (UnknownColumn, ColumnExists) as error:
            raise type(error)(f"zip, {self.of}: {error}") from None

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the columns of all datasets, if those that the step gives are known."""
        own = None if names is None else self.step.columns_after(self._own(names))
        return None if own is None or names is None else [*map(self._outer, own), *self._others(names)]

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return the columns of the other datasets, and what the step carries."""
        own = self.step.carried({self._inner(name): types[name] for name in types if self._is_own(name)})
        others = {name: known for name, known in types.items() if not self._is_own(name)}
        return {self._outer(name): known for name, known in own.items()} | others

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return what the step needs of its dataset, and what is needed of the others."""
        return self._needed(self.step.needed_before, needed)

    def values_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return of which columns the step looks at values, and what is needed of the others."""
        return self._needed(self.step.values_before, needed)

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return the columns of the other datasets, and those of the step's."""
        own = self.step.unread_after(self.own_unread(unread))
        return frozenset([*map(self._outer, own), *self._others(unread)])

    def own_unread(self, unread: frozenset[str]) -> frozenset[str]:
        """Return which columns of the step's dataset were not read, by the names that it knows."""
        return frozenset(self._own(unread))

    def _needed(
        self, before: Callable[[NeededColumns, pa.Schema], NeededColumns], needed: NeededColumns
    ) -> NeededColumns:
        only = None if needed.only is None else frozenset(self._own(needed.only))
        own = before(NeededColumns(only, frozenset(self._own(needed.without))), self.schema)
        without = frozenset([*map(self._outer, own.without), *self._others(needed.without)])
        if own.only is not None and needed.only is not None:
            return NeededColumns(
                frozenset([*map(self._outer, own.only), *self._others(needed.only)]), without
            )
        # All columns of one dataset, and some of another: those of the source that are not needed are left out.
        spare = (self._outer(name) for name in self.schema.names if not own.has(name))
        return NeededColumns(None, without.union(spare))

    def _is_own(self, name: str) -> bool:
        return name.startswith(self.prefix)

    def _inner(self, name: str) -> str:
        return name[len(self.prefix) :]

    def _outer(self, name: str) -> str:
        return self.prefix + name

    def _own(self, names: Iterable[str]) -> list[str]:
        return [self._inner(name) for name in names if self._is_own(name)]

    def _others(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self._is_own(name)]

    def shape(self) -> dict[str, Any]:
        """Return that of the step, and of which dataset it is."""
        return {**self.step.shape(), "dataset": self.prefix}


def on_side(step: Step, number: int, schema: pa.Schema) -> OnSide:
    """Return a step of a dataset as one of a zip, where the dataset has this number, from 1, and such a source."""
    if isinstance(step, OnSide):
        return OnSide(step.step, f"{number}:{step.prefix}", step.schema)
    return OnSide(step, f"{number}:", schema)
