"""Nobody asks what kind of thing fills a port: what differs is a method of the port, which may have a default."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import headrace
from headrace.core import engine_ports, model_ports

SOURCE = Path(headrace.__file__).parent
PORTS = {
    *("Source", "Format", "Target", "Sink", "Writer", "Encoder", "Predictor", "Accumulator", "Observer"),
    *("PredictorParts", "ObserverParts", "AccumulatorParts", "Engine", "Pool", "Place", "Publisher", "Log"),
    *("Storage", "ObjectPath"),
}
PARTS = (
    model_ports.PredictorParts,
    model_ports.ObserverParts,
    model_ports.AccumulatorParts,
    engine_ports.EngineParts,
)
PLAIN = {"close", "collect", "columns", "batch_format"}  # also of files, frames and Ray's preprocessors
OPTIONAL = {name for parts in PARTS for name in vars(parts) if not name.startswith("_")} - PLAIN
ALLOWED = {"core/stores/objects.py": {"isinstance(path, ObjectPath)"}}
"""``object_of`` tells an object from a file, and all others ask it."""


def words(node: ast.AST) -> set[str]:
    """Return the last word of each name in an expression."""
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@functools.cache
def nodes() -> dict[str, tuple[list[ast.ClassDef], list[ast.Call]]]:
    """Return the classes of all modules, and their calls of what has a plain name, by the modules' paths."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        every = [*ast.walk(ast.parse(path.read_text()))]
        classes = [node for node in every if isinstance(node, ast.ClassDef)]
        calls = [node for node in every if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        found[str(path.relative_to(SOURCE))] = classes, calls
    return found


def called(*names: str) -> Iterator[tuple[str, ast.Call]]:
    for path, (_, calls) in nodes().items():
        yield from ((path, call) for call in calls if getattr(call.func, "id", "") in names)


def filling() -> set[str]:
    """Return the names of ports, and of all classes that inherit from one, however far above."""
    every = [node for classes, _ in nodes().values() for node in classes]
    bases = {node.name: set().union(*map(words, node.bases)) for node in every}
    found = set(PORTS)
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def test_nobody_asks_what_fills_a_port() -> None:
    kinds = filling()
    assert {"ParquetSource", "InStore", "FolderPublisher", "DeltaTable"} <= kinds
    asked = {
        f"{name}: {ast.unparse(call)}"
        for name, call in called("isinstance", "issubclass")
        if words(call.args[1]) & kinds and ast.unparse(call) not in ALLOWED.get(name, ())
    }
    assert not asked, "Give the port a method, with a default where most need none."


def test_nobody_looks_whether_something_has_what_a_port_leaves_open() -> None:
    """``completed`` gives what fills a port the defaults that it lacks."""
    looked = {
        f"{name}: {ast.unparse(call)}"
        for name, call in called("hasattr", "getattr")
        if isinstance(call.args[1], ast.Constant) and call.args[1].value in OPTIONAL
    }
    assert not looked
