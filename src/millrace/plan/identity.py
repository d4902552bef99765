"""Who a run is: the *shape* of its plan, and the *code* of the user's functions (see ``fingerprint``)."""

from __future__ import annotations

import hashlib
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millrace.core.ports import Accumulator
from millrace.plan.fingerprint import Hasher
from millrace.plan.logical import (
    Accumulate,
    Drop,
    Filter,
    Function,
    Limit,
    MapBatches,
    Model,
    Plan,
    Predict,
    Rename,
    Select,
    Step,
    functions_of,
    model_label,
    step_label,
)

_UNKNOWN = "unknown "


def shape_of(plan: Plan) -> dict[str, Any]:
    """Return what must match for two runs to be the same: source, verbs, columns, sink; plain JSON values.

    The types of the output are no part of it: a run settles them, and they may be given later.
    """
    return {
        "source": plan.source.describe(),
        "steps": [_step_shape(step) for step in plan.steps],
        "sink": plan.sink.describe() if plan.sink is not None else None,
    }


def _step_shape(step: Step) -> dict[str, Any]:
    shape: dict[str, Any] = {"verb": step.verb}
    if isinstance(step, MapBatches):
        shape |= {"format": step.batch_format, "columns": list(step.columns) if step.columns else None}
    elif isinstance(step, Predict):
        keep = "all" if step.keep is None else list(step.keep)
        shape |= {"models": [_model_shape(model) for model in step.models], "keep": keep}
        shape |= {"replace": True} if step.replace else {}
    elif isinstance(step, (Select, Drop)):
        shape["columns"] = list(step.columns)
    elif isinstance(step, Rename):
        shape["names"] = dict(step.names)
    elif isinstance(step, Limit):
        shape["rows"] = step.rows
    elif isinstance(step, Accumulate):
        shape["metrics"] = {name: _metric_shape(metric) for name, metric in step.metrics}
    elif isinstance(step, Filter) and step.function is None:
        exact = hashlib.sha256(pickle.dumps(step.expression)).hexdigest()[:16]
        shape["expression"] = f"{step.expression} ({exact})"  # its text leaves out the middle of long lists
    return shape


def _metric_shape(metric: Accumulator) -> Any:
    describe = getattr(metric, "describe", None)
    if callable(describe):
        return msgspec.to_builtins(describe(), str_keys=True, enc_hook=str)
    kind = f"{type(metric).__module__}.{type(metric).__qualname__}"
    return {"kind": kind, "columns": list(metric.columns), "code": fingerprint(metric.empty())}


def _model_shape(model: Model) -> dict[str, Any]:
    inputs = list(model.inputs) if model.inputs is not None else None
    return {"inputs": inputs, "output": model.output, "format": model.batch_format}


def code_of(steps: Sequence[Step]) -> dict[str, str]:
    """Return fingerprints of the user code and of each of its arguments, keyed by place and name.

    A key such as ``"0: the code of map_batches(f)"`` is what a message says after the colon.
    """
    prints = {}
    for i, step in enumerate(steps):
        for label, function in _labelled(step):
            for part, value in _parts_of(function):
                prints[f"{i}: {part} of {label}"] = fingerprint(value)
    return prints


def unrecognised(code: Mapping[str, str]) -> list[str]:
    """Return what in the code of a run nobody can compare with another run's, in words.

    >>> unrecognised({"0: the code of map(f)": "unknown 7a: the variable 'LOG' → a value of type io.TextIOWrapper"})
    ["the code of map(f) → the variable 'LOG' → a value of type io.TextIOWrapper"]
    """
    return [
        f"{place.partition(': ')[2]} → {mark.partition(': ')[2]}"
        for place, mark in code.items()
        if mark.startswith(_UNKNOWN)
    ]


def _labelled(step: Step) -> list[tuple[str, Function]]:
    if isinstance(step, Predict):  # a file's name is no part of what it is
        return [
            (
                f"predict(output={model.output!r})" if model.function.predictor else model_label(step, model),
                model.function,
            )
            for model in step.models
        ]
    return [(step_label(step), function) for function in functions_of(step)]


def _parts_of(function: Function) -> Iterator[tuple[str, Any]]:
    if function.version is not None:
        yield "the version", function.version
        return
    identity = getattr(function.predictor, "identity", None)
    if identity is not None:
        yield "the model", identity()
    else:
        yield "the code", function.call
    for kind, args, kwargs in (
        ("argument", function.args, function.kwargs),
        ("constructor argument", function.init_args, function.init_kwargs),
    ):
        for i, value in enumerate(args):
            yield f"{kind} {i + 1}", value
        for name, value in kwargs.items():
            yield f"{kind} {name!r}", value


def fingerprint(value: Any) -> str:
    """Return a hex digest of a function's code with the values that it reaches, or of any other value.

    If there is something in it that cannot be looked at, return what it is, in a text that never comes twice:
    it may be another one each time.
    """
    hasher = Hasher()
    try:
        for _, part in _parts_of(value) if isinstance(value, Function) else [("", value)]:
            hasher.add(part)
    except RecursionError:
        hasher.unknown.append("a value that is nested too deeply")
    if hasher.unknown:
        return f"{_UNKNOWN}{uuid.uuid4().hex}: {hasher.unknown[0]}"
    return hasher.digest()


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
