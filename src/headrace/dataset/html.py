"""A dataset as a notebook shows it. No function of the user's is called, and no row is read."""

from __future__ import annotations

from headrace.core.source_ports import Source
from headrace.core.tables import Table, card, columns_table
from headrace.errors import HeadraceError
from headrace.plan.compile import known_columns
from headrace.plan.logical import Plan

_COLUMNS = 30  # that have a row each
_PATHS = 3


def dataset_html(plan: Plan) -> str:
    """Return what is read, by which steps it goes, and which columns with which types come out."""
    source = plan.source
    kind = type(source).__name__.removesuffix("Source")
    facts = [("reads", _read(source, kind)), *_numbered([step.label() for step in plan.steps])]
    if not type(source).__module__.startswith("headrace."):  # its methods are the user's code
        return card("Dataset", [*facts, ("columns", "known when it runs")])
    try:
        columns, adds = known_columns(plan.steps, source.schema())
    except HeadraceError as error:
        return card("Dataset", [*facts, ("columns", f"not known: {error}")])
    rows = columns_table(dict(list(columns.items())[:_COLUMNS])).rows
    if adds is not None and not columns:
        return card(
            "Dataset", [*facts, ("columns", f"what {adds.label()} makes; schema() runs a few rows to see")]
        )
    more = [f"and {len(columns) - _COLUMNS:,} more columns"] if len(columns) > _COLUMNS else []
    more += [f"and what {adds.label()} makes"] if adds is not None else []
    return card("Dataset", facts, Table(("column", "type"), rows, "; ".join(more)))


def _read(source: Source, kind: str) -> str:
    paths = [str(path) for path in source.paths]
    if not paths:
        return kind
    shown = ", ".join(paths[:_PATHS])
    return f"{kind}: {shown}" + (f" and {len(paths) - _PATHS:,} more" if len(paths) > _PATHS else "")


def _numbered(steps: list[str]) -> list[tuple[str, str]]:
    return [("steps" if i == 1 else "", f"{i}. {label}") for i, label in enumerate(steps, 1)]
