"""The arguments of a ``BatchPredictor``'s calls: options by name, and what a function of the user's takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import ArgumentError

OUTPUT = "output_column_name"
BATCH_SIZE = 4096


def named_options(verb: str, kwargs: Any) -> dict[str, Any]:
    """Return ``predict_batch_kwargs``, a dict or None, as a dict."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentError(f"{verb}(predict_batch_kwargs={kwargs!r}): it takes a dict of arguments by name.")
    return dict(kwargs or {})


def argument_names(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a function's arguments; None if it takes any, or has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return tuple(each.name for each in parameters if each.name not in ("self", "cls"))


def takes_argument(function: Callable[..., Any], name: str, *, given: bool) -> bool:
    """Say whether to pass an argument on: the function names it, and the user gave it or there is no default."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):
        return False
    return parameter is not None and (given or parameter.default is parameter.empty)


def column_named(name: Any) -> str:
    """Return the name of the column with the predictions, if it can be one."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{OUTPUT}={name!r}: it takes the name of the column with the predictions.")
    return name
