"""Who a run is: the *shape* of its plan, and the *code* of the user's functions (see ``fingerprint``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import ArgumentError, PlanError
from headrace.plan.column_expressions import arrow_expression, lit
from headrace.plan.fingerprint import UNKNOWN, fingerprint, parts_of_function
from headrace.plan.logical import Plan
from headrace.plan.steps.base import Step
from headrace.plan.steps.selection import Provenance


def shape_of(plan: Plan) -> dict[str, Any]:
    """Return what must match for two runs to be the same: source, verbs, columns, sink; plain JSON values.

    The types of the output are no part of it: a run settles them, and they may be given later.
    """
    return {
        "source": plan.source.describe(),
        "steps": [step.shape() for step in plan.steps],
        "sink": plan.sink.describe() if plan.sink is not None else None,
    }


def code_of_plan(plan: Plan) -> dict[str, str]:
    """Return ``code_of`` of the steps, and the code by which the source's rows are made."""
    return {**plan.source.code(), **code_of(plan.steps)}


def is_of_input(place: str) -> bool:
    """Say whether a key of ``code_of_plan`` is about code that makes the rows of the source.

    >>> is_of_input("input rides, 0: the code of map_batches(f)"), is_of_input("0: the code of map_batches(f)")
    (True, False)
    """
    return place.startswith("input ")


def code_of(steps: Sequence[Step]) -> dict[str, str]:
    """Return fingerprints of the user code and of each of its arguments, keyed by place and name.

    A key such as ``"0: the code of map_batches(f)"`` is what a message says after the colon.
    """
    prints = {}
    for i, step in enumerate(steps):
        for each in step.functions():
            for part, value in parts_of_function(each.function):
                prints[f"{i}: {part} of {each.identity}"] = fingerprint(value)
    return prints


def with_provenance(plan: Plan, column: Any) -> Plan:
    """Return a plan that adds a column with ``version_of`` to each row."""
    if not isinstance(column, str) or not column.isidentifier():
        raise ArgumentError(
            f"provenance={column!r}: it is the name of a new column, such as 'model_version'."
        )
    noted = Provenance(column, arrow_expression(lit(version_of(plan))))
    return replace(plan, steps=(*plan.steps, noted))


def version_of(plan: Plan) -> str:
    """Return what makes the rows of a plan: the ``version=`` of its function or model, or a digest of its code.

    Of several, each has its name before it. Raises ``PlanError`` if there is none, or one that cannot be recognised.
    """
    found = {"input": _digest(code)} if (code := plan.source.code()) else {}
    for step in plan.steps:
        for each in step.functions():
            code = {part: fingerprint(value) for part, value in parts_of_function(each.function)}
            if unknown := unrecognised({f": {part} of {each.identity}": code[part] for part in code}):
                raise PlanError(
                    f"provenance= cannot tell what {unknown[0]} is, so it would have another version on each run. "
                    "Give the step version='…'."
                )
            name = each.function.name
            name = f"{name} {len(found) + 1}" if name in found else name
            found[name] = each.function.version or _digest(code)
    if not found:
        raise PlanError("provenance= notes the version of a function or model, and the plan has none.")
    return next(iter(found.values())) if len(found) == 1 else ", ".join(f"{k}: {v}" for k, v in found.items())


def _digest(code: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:12]


def unrecognised(code: Mapping[str, str]) -> list[str]:
    """Return what in the code of a run nobody can compare with another run's, in words.

    >>> unrecognised({"0: the code of map(f)": "unknown 7a: the variable 'LOG' → a value of type io.TextIOWrapper"})
    ["the code of map(f) → the variable 'LOG' → a value of type io.TextIOWrapper"]
    """
    return [
        f"{place.partition(': ')[2]} → {mark.partition(': ')[2]}"
        for place, mark in code.items()
        if mark.startswith(UNKNOWN)
    ]


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List where two shapes differ, in the words of the verbs: ``step 2, predict: output= was 'a', is 'b'``."""
    lines = _parts("the input", old.get("source"), new.get("source"))
    before, now = old.get("steps") or [], new.get("steps") or []
    if [step["verb"] for step in before] != [step["verb"] for step in now]:
        lines.append(f"its steps were {_verbs(before)}; they are {_verbs(now)}")
    else:
        for at, (was, is_) in enumerate(zip(before, now, strict=True), 1):
            lines += _step_differences(f"step {at}, {now[at - 1]['verb']}", was, is_)
    return lines + _parts("the output", old.get("sink"), new.get("sink"))


_ARGUMENTS = {"format": "batch_format", "expression": "expr"}


def _step_differences(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    was, is_ = dict(old), dict(new)
    before, now = was.pop("models", []), is_.pop("models", [])
    if len(before) != len(now):
        return [f"{where}: it had {len(before)} models, and has {len(now)}"]
    lines = []
    for at, (one, other) in enumerate(zip(before, now, strict=True), 1):
        lines += _parts(f"{where}, model {at}" if len(now) > 1 else where, one, other, "=")
    metrics = was.pop("metrics", {}), is_.pop("metrics", {})
    return lines + _parts(where, was, is_, "=") + _parts(f"{where}, the metric", *metrics)


def _parts(where: str, old: Any, new: Any, mark: str = "") -> list[str]:
    """List the entries in which two dicts differ."""
    if old == new:
        return []
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return [f"{where} was {_said(old)}, is {_said(new)}"]
    return [
        f"{where}: {_ARGUMENTS.get(key, key)}{mark} was {_said(old.get(key))}, is {_said(new.get(key))}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _verbs(steps: Sequence[Mapping[str, Any]]) -> str:
    return " → ".join(step["verb"] for step in steps) or "none"


def _said(value: Any) -> str:
    """Say a value as one reads it: lists by commas, dicts as ``a: b``, and what was not given as that."""
    if value is None:
        return "not given"
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{key}: {_said(each)}" for key, each in value.items() if each is not None) or "nothing"
        )
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) if isinstance(each, str) else _said(each) for each in value) or "nothing"
    return repr(value)
