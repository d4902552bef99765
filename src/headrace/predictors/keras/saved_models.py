"""What the graph of a TensorFlow SavedModel can do, seen without TensorFlow: compute, or reach files and code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.core.files.model_files import NotReadable
from headrace.core.files.protobuf import Walk, mapped
from headrace.predictors.keras.saved_model_ops import COMPUTING, SAVING

# Field numbers of https://github.com/tensorflow/tensorflow/tree/master/tensorflow/core, in protobuf and framework:
# saved_model.proto, meta_graph.proto, saved_object_graph.proto, graph.proto, function.proto, node_def.proto,
# attr_value.proto. A field that may be there once is read wherever it is: libraries take the last, or merge them.
_META_GRAPHS = 2
_GRAPH, _OBJECTS = 2, 7
_LIBRARY, _FUNCTION, _SIGNATURE, _NAME = 2, 1, 1, 1
_FUNCTION_ATTR, _FUNCTION_NODE = 5, 3
_OP, _NODE_ATTR = 2, 5
_KEY, _VALUE = 1, 2
_LIST, _FUNC, _FUNC_IN_LIST, _FUNC_ATTR = 1, 10, 9, 2
_OBJECT, _CONCRETE = 1, 2
_SAVED_FUNCTION, _BARE_FUNCTION = 6, 8
_DEEPEST = 20

_SWAPPED = ("api_implements", "_implements")


@dataclass(frozen=True, slots=True)
class _Body:
    """One function of the graph: which operations and functions it names, and whether it stands in for others."""

    ops: frozenset[str]
    calls: frozenset[str]
    swapped: bool


def why_untrusted(folder: str) -> str | None:
    """Say what a SavedModel could do beside computing; None if it is known that it can do nothing.

    Raises ``OSError`` and ``NotReadable`` for a file that is cut off, or is none.
    """
    path = os.path.join(folder, "saved_model.pb")
    if not os.path.isfile(path):
        return "is stored as text or in pieces, and is not looked into in that form"
    walk = Walk()
    metas = list(walk.messages(mapped(path), _META_GRAPHS))
    if len(metas) != 1 or not any(number == _OBJECTS for number, _ in walk.fields(metas[0])):
        return "is one of TensorFlow 1, whose graph is run as a whole when it is loaded"
    bodies = dict(_functions(walk, metas[0]))
    called = _reached(_roots(walk, metas[0]), bodies)
    bad: dict[str, str] = {}
    for name, body in sorted(bodies.items()):
        allowed = COMPUTING if name in called or body.swapped else COMPUTING | SAVING
        for op in sorted(body.ops - bodies.keys() - allowed):
            bad.setdefault(op, name)
    if not bad:
        return None
    shown = [f"{op} (in the function {name})" for op, name in list(bad.items())[:3]]
    return f"has operations in its graph that may reach files, the network or code: {', '.join(shown)}" + (
        f", and {len(bad) - 3} more" if len(bad) > 3 else ""
    )


def _reached(roots: Iterable[str], bodies: dict[str, _Body]) -> set[str]:
    """Return the functions that can be called: those of the objects, and what these call."""
    reached: set[str] = set()
    waiting = [name for name in roots if name in bodies]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [each for each in bodies[name].calls if each in bodies]
    return reached


def _roots(walk: Walk, meta: memoryview) -> Iterator[str]:
    for objects in walk.messages(meta, _OBJECTS):
        for each in walk.messages(objects, _OBJECT):
            for kind in (_SAVED_FUNCTION, _BARE_FUNCTION):
                for function in walk.messages(each, kind):
                    yield from _texts(walk, function, _NAME)
        for entry in walk.messages(objects, _CONCRETE):
            yield from _texts(walk, entry, _KEY)


def _functions(walk: Walk, meta: memoryview) -> Iterator[tuple[str, _Body]]:
    seen: set[str] = set()
    for graph in walk.messages(meta, _GRAPH):
        for library in walk.messages(graph, _LIBRARY):
            for function in walk.messages(library, _FUNCTION):
                names = {
                    name
                    for signature in walk.messages(function, _SIGNATURE)
                    for name in _texts(walk, signature, _NAME)
                }
                if len(names) != 1 or seen & names:
                    raise NotReadable("a function in it has no name, or that of another")
                seen |= names
                yield names.pop(), _body(walk, function)


def _body(walk: Walk, function: memoryview) -> _Body:
    ops: set[str] = set()
    calls: set[str] = set()
    for node in walk.messages(function, _FUNCTION_NODE):
        ops.update(_texts(walk, node, _OP))
        for entry in walk.messages(node, _NODE_ATTR):
            calls.update(_called(walk, entry))
    keys = {key for entry in walk.messages(function, _FUNCTION_ATTR) for key in _texts(walk, entry, _KEY)}
    return _Body(frozenset(ops), frozenset(calls | ops), not keys.isdisjoint(_SWAPPED))


def _called(walk: Walk, entry: memoryview, depth: int = 0) -> Iterator[str]:
    """Yield the names of the functions in an attribute of a node."""
    if depth > _DEEPEST:
        raise NotReadable("functions nest too deep in it")
    for value in walk.messages(entry, _VALUE):
        named = [*walk.messages(value, _FUNC)]
        for several in walk.messages(value, _LIST):
            named += walk.messages(several, _FUNC_IN_LIST)
        for function in named:
            yield from _texts(walk, function, _NAME)
            for inner in walk.messages(function, _FUNC_ATTR):
                yield from _called(walk, inner, depth + 1)


def _texts(walk: Walk, message: memoryview, wanted: int) -> Iterator[str]:
    for value in walk.messages(message, wanted):
        yield bytes(value).decode("utf-8", "backslashreplace")
