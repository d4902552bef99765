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


def called(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def words(node: ast.AST) -> set[str]:
    """Return the last word of each name in an expression."""
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return all modules, by their paths."""
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def filling() -> set[str]:
    """Return the names of ports, and of all classes that inherit from one, however far above."""
    bases = {
        node.name: set().union(*map(words, node.bases))
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = set(PORTS)
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def test_nobody_asks_what_fills_a_port() -> None:
    kinds = filling()
    assert {"ParquetSource", "InStore", "FolderPublisher", "DeltaTable"} <= kinds
    asked = {
        f"{name}: {ast.unparse(call)}"
        for name, tree in trees().items()
        for call in called(tree, "isinstance", "issubclass")
        if words(call.args[1]) & kinds and ast.unparse(call) not in ALLOWED.get(name, ())
    }
    assert not asked, "Give the port a method, with a default where most need none."


def test_nobody_looks_whether_something_has_what_a_port_leaves_open() -> None:
    """``completed`` gives what fills a port the defaults that it lacks."""
    looked = {
        f"{name}: {ast.unparse(call)}"
        for name, tree in trees().items()
        for call in called(tree, "hasattr", "getattr")
        if isinstance(call.args[1], ast.Constant) and call.args[1].value in OPTIONAL
    }
    assert not looked
