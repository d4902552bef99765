"""Ray's ``ray.dag``: calls that are written down first, and made when ``execute`` is called.

Each node is one call of ``remote``; what a node is bound to is the reference that the call of that node returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ArgumentError

__all__ = ["ClassNode", "DAGNode", "FunctionNode", "InputNode", "MultiOutputNode"]


class DAGNode:
    """A call that is not made yet; ``execute`` makes it, and all that it needs.

    >>> from headrace.compat import ray
    >>> @ray.remote
    ... def add(x, y=1):
    ...     return x + y
    >>> with InputNode() as given:
    ...     twice = add.bind(add.bind(given), y=10)
    >>> ray.get(twice.execute(5))
    16
    >>> ray.shutdown()
    """

    def __init__(self, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        self._args, self._kwargs = args, dict(kwargs or {})

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Make the calls, each once, and return the reference of this one; ``InputNode`` stands for the arguments."""
        return self._of({}, (args, kwargs))

    def experimental_compile(self, **_: Any) -> DAGNode:
        """Return the node: its calls are made by ``execute``, as before."""
        return self

    def teardown(self) -> None:
        """Nothing is left open; actors live on."""

    def _of(self, made: dict[DAGNode, Any], given: Any) -> Any:
        """Return what stands for this node in an execution."""
        if self not in made:
            made[self] = self._make(made, given)
        return made[self]

    def _make(self, made: dict[DAGNode, Any], given: Any) -> Any:
        raise NotImplementedError

    def _call(self, remote: Any, made: dict[DAGNode, Any], given: Any) -> Any:
        args = [_filled(each, made, given) for each in self._args]
        return remote(*args, **{name: _filled(each, made, given) for name, each in self._kwargs.items()})


def _filled(value: Any, made: dict[DAGNode, Any], given: Any) -> Any:
    if isinstance(value, DAGNode):
        return value._of(made, given)
    if type(value) in (list, tuple):
        return type(value)(_filled(each, made, given) for each in value)
    if type(value) is dict:
        return {key: _filled(each, made, given) for key, each in value.items()}
    return value


class FunctionNode(DAGNode):
    """A call of a remote function, or of a method of an actor that there is; made by its ``bind``."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__(args, kwargs)
        self._function = function

    def _make(self, made: dict[DAGNode, Any], given: Any) -> Any:
        return self._call(self._function.remote, made, given)


class ClassNode(FunctionNode):
    """An actor, which each execution makes anew. ``node.method.bind(…)`` is a call of it, after those before it."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__(function, args, kwargs)
        self._calls: list[_MethodNode] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)


class _Method:
    def __init__(self, owner: ClassNode, name: str) -> None:
        self._owner, self._name = owner, name

    def bind(self, *args: Any, **kwargs: Any) -> _MethodNode:
        """Write down a call of the method."""
        node = _MethodNode(self._owner, self._name, args, kwargs)
        self._owner._calls.append(node)
        return node


class _MethodNode(DAGNode):
    def __init__(self, owner: ClassNode, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__(args, kwargs)
        self._owner, self._name = owner, name
        self._before = list(owner._calls)

    def _make(self, made: dict[DAGNode, Any], given: Any) -> Any:
        for call in self._before:
            call._of(made, given)
        return self._call(getattr(self._owner._of(made, given), self._name).remote, made, given)


class InputNode(DAGNode):
    """What ``execute`` is called with; parts of it by ``node["name"]``, ``node[0]`` and ``node.name``."""

    def __enter__(self) -> InputNode:
        return self

    def __exit__(self, *_: Any) -> None:
        """End of the block in which it is used."""

    def __getitem__(self, key: Any) -> DAGNode:
        return _InputPart(self, key)

    def __getattr__(self, name: str) -> DAGNode:
        if name.startswith("_"):
            raise AttributeError(name)
        return _InputPart(self, name)

    def _make(self, made: dict[DAGNode, Any], given: Any) -> Any:
        args, kwargs = given
        if len(args) != 1 or kwargs:
            raise ArgumentError(
                f"execute was called with {len(args) + len(kwargs)} arguments, and the graph uses InputNode() as "
                "one. Call execute(value), or use parts of it, such as node[0] and node['name']."
            )
        return args[0]


class _InputPart(DAGNode):
    def __init__(self, whole: InputNode, key: Any) -> None:
        super().__init__()
        self._key = key

    def _make(self, made: dict[DAGNode, Any], given: Any) -> Any:
        args, kwargs = given
        if len(args) == 1 and not kwargs:
            return args[0][self._key]
        try:
            return args[self._key] if isinstance(self._key, int) else kwargs[self._key]
        except (IndexError, KeyError):
            raise ArgumentError(f"execute was not called with {self._key!r}, which the graph uses.") from None


class MultiOutputNode(DAGNode):
    """Several nodes: ``execute`` returns the list of their references."""

    def __init__(self, args: Any) -> None:
        super().__init__((list(args),))

    def _make(self, made: dict[DAGNode, Any], given: Any) -> Any:
        return _filled(self._args[0], made, given)
