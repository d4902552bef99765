"""Datasets that have steps, as one: ``union`` has one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.plan.steps.base import OnBranch, Step, V, innermost

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
            inner = innermost(step)
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
