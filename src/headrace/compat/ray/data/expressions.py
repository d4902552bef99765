"""Ray's ``ray.data.expressions``: ``col`` and ``lit``."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.offered import missing
from headrace.plan.column_expressions import ColumnExpression as Expr
from headrace.plan.column_expressions import col, lit

__all__ = ["Expr", "col", "lit"]


def __getattr__(name: str) -> Any:
    raise missing("ray.data.expressions", name, __all__)
