"""Programs of torch that were recorded in training mode: no mode helps them any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import ModelError

_SPEAKING = ("dropout", "batch_norm", "attention", "lstm", "gru", "rnn")


def check_recorded(program: Any, label: str) -> None:
    """Raise ``ModelError`` if a program has dropout, or the statistics of each batch, recorded as constants.

    ``model.eval()`` changes a module, and a script that asks for its mode. What was traced or exported does not ask.
    """
    import torch

    if isinstance(program, torch.export.ExportedProgram):
        how, calls = "exported", _exported(program)
    elif isinstance(program, torch.jit.ScriptModule):
        how, calls = "traced", _traced(program)
    else:
        return
    found = next((name for name, given in calls if _trains(given)), None)
    if found is not None:
        raise ModelError(
            f"{label} was {how} in training mode: it would predict with {found} as in training, with other results "
            f"for the same row. Call model.eval() before it is {how}. If that is what you want, call the program in "
            "a function of your own: map_batches(…)."
        )


def _trains(given: Mapping[str, Any]) -> bool:
    if given.get("training") is True:
        return given.get("running_mean") is not None  # else it has no other statistics in either mode
    if given.get("train") is True:
        return bool(given.get("p", given.get("dropout")))
    rate = given.get("dropout_p")
    return isinstance(rate, float) and rate > 0


def _exported(program: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None:
            names = [argument.name for argument in schema.arguments]
            yield _short(schema.name), {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _traced(program: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls that are always made; those of a script stand in branches that ask for its mode."""
    import torch

    try:
        graph = program.inlined_graph
    except (AttributeError, RuntimeError):  # it has methods, but no forward
        return
    for node in graph.nodes():
        if any(word in node.kind() for word in _SPEAKING):
            names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
            values = [_constant(value) for value in node.inputs()]
            yield _short(node.kind()), dict(zip(names, values, strict=False))


def _constant(value: Any) -> Any:
    """Return what a value of a graph is, or the value itself if that is known only when it runs."""
    return value.toIValue() if value.node().kind() == "prim::Constant" else value


def _short(name: str) -> str:
    return name.rpartition("::")[2]
