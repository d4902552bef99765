"""What the user passed to a verb, checked and brought into the plan's form."""

from __future__ import annotations

import inspect
import math
import numbers
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.door import install_hint
from headrace.core.human import given_bytes, given_count
from headrace.core.option_values import check_ray_remote_args
from headrace.errors import ArgumentError, MissingLibrary, UnknownArgument, nearest
from headrace.plan.functions import Function, callable_name, is_async, is_async_generator
from headrace.plan.steps.base import Remote, Resources
from headrace.plan.verb_options import ActorPoolStrategy, TaskPoolStrategy, worker_bounds

if TYPE_CHECKING:
    from headrace.core.arrow.batch_formats import BatchFormat

_MAY_WAIT = ("map_batches", "predict")
_FORMATS = ("numpy", "pandas", "pyarrow")


def given_function(verb: str, fn: Any, options: Mapping[str, Any]) -> Function:
    """Read a function, or a class with the arguments of its constructor; ``options`` are ``StepOptions``."""
    init_args, init_kwargs = options.get("fn_constructor_args"), options.get("fn_constructor_kwargs")
    version = options.get("version")
    if not callable(fn):
        expression = f" A string is an expression: {verb}(expr={fn!r})." if verb == "filter" else ""
        raise ArgumentError(
            f"{verb}({fn!r}): it takes a function, a callable object or a class."
            f"{expression if isinstance(fn, str) else ''}"
        )
    label = f"{verb}({callable_name(fn)})"
    if isinstance(fn, type):
        if "__call__" not in dir(fn) or fn.__call__ is type.__call__:
            raise ArgumentError(f"{label}: the class needs a method __call__(self, batch).")
        missing = _missing(fn, tuple(init_args or ()), dict(init_kwargs or {}))
        if missing:
            raise ArgumentError(
                f"{label}: each worker makes an object of the class, and its __init__ needs {missing}. Give it by "
                "fn_constructor_args=[…] or fn_constructor_kwargs={…}."
            )
    elif init_args or init_kwargs:
        raise ArgumentError(
            f"{label}: fn_constructor_args and fn_constructor_kwargs are for a class; for a function use fn_args "
            "and fn_kwargs."
        )
    if is_async_generator(fn) and verb != "map_batches":
        raise ArgumentError(f"{label}: async generators are for map_batches; give a plain one.")
    if is_async(fn) and verb not in _MAY_WAIT:
        raise ArgumentError(f"{label}: async functions are for map_batches and predict; give a plain one.")
    if version is not None and not isinstance(version, str):
        raise ArgumentError(f"{label}: version={version!r} is not a string.")
    return Function(
        fn,
        given_arguments(label, "fn_args", options.get("fn_args")),
        given_keywords(label, "fn_kwargs", options.get("fn_kwargs")),
        given_arguments(label, "fn_constructor_args", init_args),
        given_keywords(label, "fn_constructor_kwargs", init_kwargs),
        version,
    )


def _missing(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the names of what a constructor needs and was not given; "" if nothing, or if it does not tell."""
    try:
        signature = inspect.signature(cls)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return ""
    return " and ".join(
        name
        for name, each in signature.parameters.items()
        if name not in bound.arguments
        and each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    )


def given_arguments(label: str, name: str, values: Any) -> tuple[Any, ...]:
    """Read arguments by place."""
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)):
        raise ArgumentError(f"{label}: {name}={values!r} is not a list or tuple of arguments.")
    return tuple(values)


def given_keywords(label: str, name: str, values: Any) -> dict[str, Any]:
    """Read arguments by name."""
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise ArgumentError(f"{label}: {name}={values!r} is not a dict of arguments by name.")
    return dict(values)


def given_resources(options: Mapping[str, Any]) -> Resources:
    """Read what one worker needs and how many there may be; ``options`` are ``WorkerOptions``."""
    compute, concurrency, memory = (options.get(name) for name in ("compute", "concurrency", "memory"))
    ray_remote_args = options.get("ray_remote_args")
    if compute is not None and not isinstance(compute, (ActorPoolStrategy, TaskPoolStrategy)):
        raise ArgumentError(f"compute={compute!r}: it takes ActorPoolStrategy(size=2) or TaskPoolStrategy().")
    bounds = compute.bounds() if compute is not None else None
    if concurrency is not None:
        said = worker_bounds("concurrency", concurrency)
        if compute is not None and bounds != said:
            raise ArgumentError("Give either compute= or concurrency=, not both.")
        bounds = said
    cpus, gpus = (given_number(name, options.get(name)) for name in ("num_cpus", "num_gpus"))
    check_ray_remote_args(ray_remote_args)
    remote = Remote(dict(ray_remote_args)) if ray_remote_args else None
    return Resources(cpus, gpus, None if memory is None else given_bytes("memory", memory), bounds, remote)


def given_number(name: str, value: Any) -> float | None:
    """Read a number that is not negative; None if there is none. One of numpy becomes one of Python."""
    if value is None:
        return None
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or value < 0 or not math.isfinite(value):
        raise ArgumentError(f"{name}={value!r}: it takes a number that is not negative.")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def given_batch_size(value: Any) -> int | None:
    """Read a number of rows; None for ``"auto"``."""
    if value is None or value == "auto":
        return None
    return given_count("batch_size", value, 1, besides=", or 'auto'")


def given_batch_bytes(value: Any, batch_size: Any) -> int | None:
    """Read about how many bytes a batch has; None if they were not given."""
    if value is None:
        return None
    size = given_bytes("batch_size_bytes", value, least=1, whole=True)
    if given_batch_size(batch_size) is not None:
        raise ArgumentError("Give either batch_size= or batch_size_bytes=, not both.")
    return size


def given_in_flight(value: Any, rays: Any = None, fn: Any = None) -> int | None:
    """Read how many batches a worker sends to a function at a time; None: the function tells.

    ``rays`` is what Ray's name for it was given, which is for async functions.
    """
    ours = None if value is None else given_count("max_in_flight", value, 1)
    theirs = None if rays is None else given_count("max_concurrency", rays, 1)
    if ours is not None and theirs is not None:
        raise ArgumentError("max_in_flight= and max_concurrency= mean the same: give one of them.")
    return ours if ours is not None else theirs if is_async(fn) else None


def given_batch_format(value: Any) -> BatchFormat:
    """Read the name of a format; ``"default"`` is numpy, and None what needs no conversion."""
    if value == "default":
        return "numpy"
    if value is None:
        return "pyarrow"
    if value not in _FORMATS:
        listed = ", ".join(map(repr, _FORMATS))
        raise ArgumentError(f"batch_format={value!r} is not one of {listed}.{nearest(str(value), _FORMATS)}")
    if value == "pandas" and "pandas" not in sys.modules:
        from importlib.util import find_spec

        if find_spec("pandas") is None:
            raise MissingLibrary(
                f"batch_format='pandas' needs pandas, which is not installed: {install_hint('pandas')}."
            )
    return value  # type: ignore[no-any-return]


def given_names(verb: str, names: Any, *, allow_none: bool = False) -> tuple[str, ...]:
    """Read column names, one or several; none at all only with ``allow_none``."""
    if isinstance(names, str):
        return (names,)
    listed = tuple(names) if isinstance(names, Sequence) else ()
    if not isinstance(names, Sequence):
        raise UnknownArgument(f"{verb}: {names!r} is not a list of column names.")
    if not (listed or allow_none) or not all(isinstance(name, str) for name in listed):
        raise ArgumentError(f"{verb}: {names!r} is not a list of column names.")
    for name in listed:
        if listed.count(name) > 1:
            raise ArgumentError(f"{verb}: column {name!r} is named twice.")
    return listed


def given_rows(verb: str | None, name: str, value: Any) -> int:
    """Read a number of rows, zero or more; None for ``verb`` where several have the argument."""
    return given_count(name, value, verb=verb or "")


class RowsPerFile(msgspec.Struct, frozen=True):
    """How many rows the files of an output have: about ``least``, and never more than ``most``."""

    least: int | None = None
    most: int | None = None


def given_rows_per_file(least: Any, most: Any) -> RowsPerFile:
    """Read how many rows a file is to have."""
    rows = RowsPerFile(
        None if least is None else given_count("min_rows_per_file", least, 1),
        None if most is None else given_count("max_rows_per_file", most, 1),
    )
    if rows.least is not None and rows.most is not None and rows.least > rows.most:
        raise ArgumentError(f"min_rows_per_file={least} is more than max_rows_per_file={most}.")
    return rows


def given_partition_by(ours: Any, rays: Any) -> tuple[str, ...]:
    """Read the columns that folders are named for; ``rays`` is what Ray's name for it was given."""
    if ours is not None and rays is not None:
        raise ArgumentError("partition_by= and partition_cols= mean the same: give one of them.")
    names = ours if ours is not None else rays
    return () if names is None else given_names("partition_by", names, allow_none=True)


def given_folder(path: Any) -> str:
    """Read the path of a folder; Ray's ``local://`` before it says nothing new."""
    try:
        given = str(os.fspath(path))
    except TypeError:
        raise ArgumentError(f"The output path {path!r} is not a path.") from None
    if not given:
        raise ArgumentError("The output path is empty. '.' is the present folder.")
    return given.removeprefix("local://")
