"""Datasets with steps of their own, one behind the other or side by side, as one plan; and the plans of a union."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.core.source_ports import Source
from headrace.errors import ArgumentError
from headrace.plan.compile import known_columns
from headrace.plan.logical import Plan
from headrace.plan.steps.base import (
    Columns,
    Conform,
    OnBranch,
    Step,
    Union,
    innermost,
    paths_of,
    shifted,
    union_in,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.work import Shard


def united(plans: Sequence[Plan]) -> Plan:
    """Return the plan whose rows are those of ``plans``, in their order.

    The steps of each plan become steps that only its rows go through. Raises ``ArgumentError`` for a step that is
    about all rows there are, and ``SchemaMismatch`` where types of columns are known and do not unify.
    """
    from headrace.sources.union import UnionSource

    plans = [_opened(plan) for plan in plans]
    if not any(plan.steps for plan in plans):
        source = UnionSource([plan.source for plan in plans])
        source.schema()  # what does not fit is refused here
        return Plan(source)
    for number, plan in enumerate(plans, 1):
        _check(plan, number)
    whole = UnionSource([plan.source for plan in plans], apart=True)
    steps: list[OnBranch] = []
    first = 0
    for plan in plans:
        count = len(plan.source.datasets)
        steps += [shifted(_as_step_of_some(step), first, count) for step in plan.steps]
        first += count
    schemas = tuple(source.schema() for source in whole.datasets)
    found = _datasets([*steps, Union(None, (), schemas)], whole)
    columns = _columns(found)
    return Plan(whole, (*steps, Union(columns, _forms(found, columns), schemas)))


def branch_plans(plan: Plan) -> list[Plan]:
    """Return one plan for each dataset of a union whose datasets have steps of their own; [] for other plans."""
    return [
        Plan(source, tuple(step for _, step in path))
        for source, (_, path) in zip(plan.source.datasets, paths_of(plan.steps), strict=False)
    ]


def datasets_of(plan: Plan, shards: Sequence[Shard]) -> list[int]:
    """Return the number of the dataset of each planned shard of a union; [] if the types of its columns are known."""
    union = union_in(plan.steps)
    if union is None or union.settled or not shards:
        return []
    found = {shard.place[0]: plan.source.dataset_of(shard.splits[0]) for shard in shards if shard.splits}
    return [found.get(number, 0) for number in range(max(shard.place[0] for shard in shards) + 1)]


def _opened(plan: Plan) -> Plan:
    """Return a plan in which a union of datasets without steps is one of datasets that have a step."""
    source = plan.source
    if not plan.steps or len(source.datasets) == 1 or source.apart:
        return plan
    columns = tuple((field.name, field.type) for field in source.schema())
    conform = Conform(columns, tuple(source.forms().items()))
    return Plan(source, (conform, *plan.steps))


def _check(plan: Plan, number: int) -> None:
    for counting in plan.accumulates:
        raise ArgumentError(
            f"union: dataset {number} has {counting.label()}, and metrics count all rows that are written. Put "
            "accumulate after union."
        )
    for step in plan.steps:
        if step.row_limit is not None:
            raise ArgumentError(
                f"union: dataset {number} has {step.label()}, and a limit counts the rows of all datasets. Put limit "
                "after union; or call .materialize() on that dataset if it fits into memory."
            )


def _as_step_of_some(step: Step) -> Step:
    """Return the end of a union within a union as what it does with rows."""
    return Conform(step.columns, step.forms) if isinstance(step, Union) else step


class _Dataset(msgspec.Struct, frozen=True):
    """What is known of the rows of one dataset at the union; ``types`` None where columns are not known by name."""

    types: Mapping[str, pa.DataType | None] | None
    forms: Mapping[str, str]


def _datasets(steps: Sequence[Step], source: Source) -> list[_Dataset]:
    found = []
    for inner, (schema, path) in zip(source.datasets, paths_of(steps), strict=True):
        own = [step for _, step in path][:-1]
        types, adds = known_columns(own, schema)
        forms = dict(inner.forms())
        for step in own:
            forms = step.carried(forms)
            forms |= dict(step.forms) if isinstance(step, Conform) else {}
        exact = _exact_types(own, schema) if None in types.values() else types
        found.append(_Dataset(None if adds is not None else exact, forms))
    return found


def _exact_types(steps: Sequence[Step], schema: pa.Schema) -> Mapping[str, pa.DataType | None]:
    """Return the columns after steps that need not run for their types: those without functions."""
    types, _ = known_columns(steps, schema)
    if any(innermost(step).functions() for step in steps):
        return types
    from headrace.worker.steps.base import schema_by_trying

    made = schema_by_trying(steps, schema)
    return types if made is None else {field.name: field.type for field in made}


def _columns(datasets: Sequence[_Dataset]) -> Columns | None:
    """Return the columns of all datasets, with their types where all that have them are known to have some."""
    from headrace.sources.union import unified

    if any(each.types is None for each in datasets):
        return None
    import pyarrow as pa

    every = [dict(each.types or {}) for each in datasets]
    names = dict.fromkeys(name for types in every for name in types)
    known = {name for name in names if not any(name in types and types[name] is None for types in every)}
    together = unified(
        [pa.schema([(name, type_) for name, type_ in types.items() if name in known]) for types in every]
    )
    return tuple((name, together.field(name).type if name in known else None) for name in names)


def _forms(datasets: Sequence[_Dataset], columns: Columns | None) -> tuple[tuple[str, str], ...]:
    """Return the forms of columns that may hold nulls in some dataset, or that some dataset lacks."""
    from headrace.core.arrow.forms import ARRAYS, OBJECT, form_of

    found = {}
    for name, type_ in columns or ():
        marks = {each.forms[name] for each in datasets if name in each.forms}
        lacking = any(name not in (each.types or {}) for each in datasets)
        if type_ is None or not (marks or lacking):
            continue
        form = ARRAYS if ARRAYS in marks else form_of(type_, wide=OBJECT in marks)
        if form is not None:
            found[name] = form
    return tuple(found.items())
