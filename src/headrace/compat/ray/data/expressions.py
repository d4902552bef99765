"""Ray's ``ray.data.expressions``: ``col`` and ``lit``."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.offered import missing
from headrace.plan.column_expressions import ColumnExpression as Expr
from headrace.plan.column_expressions import col, lit

__all__ = ["Expr", "col", "lit"]


_FUNCTION = "with_column and map_batches(fn, batch_format='pyarrow') compute by a function of yours"
_REASONS = {
    "download": "read_binary_files reads addresses, and a function in map_batches fetches what a column names",
    "monotonically_increasing_id": "zip(range(n)) numbers rows; include_paths=True says which file one is of",
    "pyarrow_udf": _FUNCTION,
    "random": "random_sample(fraction, seed=…) chooses rows, the same ones each time",
    "udf": _FUNCTION,
    "uuid": "a run that goes on after a kill has to give the same values again: make a key of file and row",
}


def __getattr__(name: str) -> Any:
    raise missing("ray.data.expressions", name, __all__, _REASONS.get(name, ""))
