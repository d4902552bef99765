"""Who a run is: the *shape* of its plan, and the *code* of the user's functions (see ``fingerprint``)."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.plan.fingerprint import Hasher
from millrace.plan.logical import (
    Drop,
    Filter,
    Function,
    Limit,
    MapBatches,
    Plan,
    Rename,
    Select,
    Step,
    function_of,
    step_label,
)


def shape_of(plan: Plan) -> dict[str, Any]:
    """Return what must match for two runs to be the same: source, verbs, columns, sink; plain JSON values."""
    return {
        "source": plan.source.describe(),
        "steps": [_step_shape(step) for step in plan.steps],
        "sink": plan.sink.describe() if plan.sink is not None else None,
        "schema": str(plan.output_schema) if plan.output_schema is not None else None,
    }


def _step_shape(step: Step) -> dict[str, Any]:
    shape: dict[str, Any] = {"verb": step.verb}
    if isinstance(step, MapBatches):
        shape |= {"format": step.batch_format, "columns": list(step.columns) if step.columns else None}
    elif isinstance(step, (Select, Drop)):
        shape["columns"] = list(step.columns)
    elif isinstance(step, Rename):
        shape["names"] = dict(step.names)
    elif isinstance(step, Limit):
        shape["rows"] = step.rows
    elif isinstance(step, Filter) and step.function is None:
        exact = hashlib.sha256(pickle.dumps(step.expression)).hexdigest()[:16]
        shape["expression"] = f"{step.expression} ({exact})"  # its text leaves out the middle of long lists
    return shape


def code_of(steps: Sequence[Step]) -> dict[str, str]:
    """Return a fingerprint for each step with user code, keyed by its place and name."""
    prints = {}
    for i, step in enumerate(steps):
        function = function_of(step)
        if function is not None:
            prints[f"{i}: {step_label(step)}"] = fingerprint(function)
    return prints


def fingerprint(function: Function) -> str:
    """Return a hex digest of a step's code and arguments, or of the ``version`` that the user gave."""
    hasher = Hasher()
    if function.version is not None:
        hasher.text("version", function.version)
    else:
        for value in (
            function.call,
            function.args,
            dict(function.kwargs),
            function.init_args,
            dict(function.init_kwargs),
        ):
            hasher.add(value)
    return hasher.digest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """List where two shapes differ, one line per place: ``steps[1].columns: was […], is […]``."""
    lines = []
    for key in sorted({*old, *new}):
        where = f"{path}.{key}" if path else key
        lines += _differences(old.get(key), new.get(key), where)
    return lines


def _differences(old: Any, new: Any, where: str) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return difference(old, new, where)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for i, (a, b) in enumerate(zip(old, new, strict=True))
            for line in _differences(a, b, f"{where}[{i}]")
        ]
    return [f"{where}: was {old!r}, is {new!r}"]
