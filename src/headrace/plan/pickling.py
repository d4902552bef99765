"""Why a function cannot travel: a search for the thing in it that pickle refuses."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import HeadraceError, NotPicklable
from headrace.plan.functions import Function
from headrace.plan.steps.base import Step

_DEEPEST = 8
_MOST_ITEMS = 1000

Parts = Iterable[tuple[str, Any]]


@contextlib.contextmanager
def explained(steps: Sequence[Step], dumps: Callable[[Any], object]) -> Iterator[None]:
    """Where pickling fails, raise ``NotPicklable`` that names the step and what in it ``dumps`` refuses."""
    try:
        yield
    except (NotPicklable, TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError) as error:
        if isinstance(error, HeadraceError) and not isinstance(error, NotPicklable):
            raise
        told = refusal(steps, dumps)
        if not told:
            raise
        raise NotPicklable(told) from error


def refusal(steps: Sequence[Step], dumps: Callable[[Any], object]) -> str:
    """Name the first step that cannot travel to a worker, and what in it ``dumps`` refuses; "" if all can."""
    for step in steps:
        for each in step.functions():
            try:
                dumps(each.function)
            except Exception:
                return (
                    f"{step.label()} cannot travel to a worker process: {why_not_picklable(each.function, dumps)}. "
                    "Create it inside the function, or in the constructor of a class, which runs in the worker; or "
                    "use with_options(engine='inline')."
                )
        for name, metric in step.metrics:
            try:
                dumps(metric)
            except Exception as refused:
                return (
                    f"{step.label()} cannot travel to a worker process: the metric {name!r} cannot be pickled "
                    f"({refused}). Create it when update is first called; or use with_options(engine='inline')."
                )
    return ""


def why_not_picklable(function: Function, dumps: Callable[[Any], object]) -> str:
    """Name what in a function cannot be pickled, and the way to it: arguments, variables, attributes, items.

    >>> import pickle
    >>> why_not_picklable(Function(print, args=({"a": [1, (n for n in [])]},)), pickle.dumps)
    "its argument 1 → ['a'] → [1], a generator, cannot be pickled (cannot pickle 'generator' object)"
    """
    found = _search(_parts_of_function(function), dumps, ())
    if found is None:
        return "it cannot be pickled"
    way, value, error = found
    return f"{' → '.join(way)}, {_a(type(value).__name__)}, cannot be pickled ({error})"


def _search(
    parts: Parts, dumps: Callable[[Any], object], way: tuple[str, ...]
) -> tuple[tuple[str, ...], Any, Exception] | None:
    """Return the innermost part that cannot be pickled: the way to it, the thing, and what pickle said."""
    for name, value in parts:
        if isinstance(value, types.ModuleType):
            continue
        try:
            dumps(value)
        except Exception as error:
            here = (*way, name)
            inner = () if hasattr(type(value), "__identified_by__") else _parts_of(value)
            deeper = _search(inner, dumps, here) if len(here) < _DEEPEST else None
            return deeper or (here, value, error)
    return None


def _parts_of_function(function: Function) -> Parts:
    for i, value in enumerate((*function.args, *function.init_args)):
        yield f"its argument {i + 1}", value
    for name, value in (*function.kwargs.items(), *function.init_kwargs.items()):
        yield f"its argument {name!r}", value
    yield from _parts_of(function.call)


def _parts_of(value: Any) -> Parts:
    if isinstance(value, functools.partial):
        yield "the function that it wraps", value.func
        yield from ((f"its argument {i + 1}", item) for i, item in enumerate(value.args))
        yield from ((f"its argument {name!r}", item) for name, item in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield from _parts_of(value.__self__)
        yield from _parts_of(value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, type):
        for name, item in vars(value).items():
            if isinstance(item, (types.FunctionType, staticmethod, classmethod, property)):
                yield f"its method {name}", getattr(item, "__func__", getattr(item, "fget", item))
            elif not name.startswith("__"):
                yield f"its attribute {name!r}", item
        yield from (("its base class " + base.__name__, base) for base in value.__bases__)
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in list(value.items())[:_MOST_ITEMS])
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value[:_MOST_ITEMS]))
    else:
        yield from (
            (f"its attribute {name!r}", item) for name, item in getattr(value, "__dict__", {}).items()
        )
        if type(value).__module__ == "__main__":
            yield f"its class {type(value).__name__}", type(value)


def _variables(function: types.FunctionType) -> Parts:
    function = inspect.unwrap(function)
    variables = inspect.getclosurevars(function)
    for name, value in (*variables.nonlocals.items(), *variables.globals.items()):
        yield f"the variable {name!r} that it uses", value
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield f"the default of its parameter {name!r}", parameter.default
    yield from ((f"its attribute {name!r}", value) for name, value in vars(function).items())


def _a(noun: str) -> str:
    return ("an " if noun[:1].lower() in "aeiou" else "a ") + noun
