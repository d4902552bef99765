"""What is put around a function or class before it travels: options of Ray's that a worker carries out by itself."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.compat.ray.offered import not_offered
from headrace.errors import ArgumentError


def environment(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a ``runtime_env``, checked: ``env_vars``, ``working_dir`` and ``py_modules`` of this machine.

    Packages of ``pip`` have to be installed already.

    >>> environment({"env_vars": {"MODE": "batch"}})
    {'env_vars': {'MODE': 'batch'}}
    """
    taken = {name: value for name, value in (given or {}).items() if value and name != "config"}
    for name in ("pip", "uv"):
        listed = taken.pop(name, [])
        listed = listed.get("packages", []) if isinstance(listed, Mapping) else listed
        for package in [listed] if isinstance(listed, str) else listed:
            _check_installed(package)
    for name in taken:
        if name not in ("env_vars", "working_dir", "py_modules"):
            why = "workers have this program's own Python: install what it needs before"
            raise not_offered(f"runtime_env={{{name!r}: …}}", why=why)
    for folder in [taken.get("working_dir", "."), *taken.get("py_modules", ())]:
        if not os.path.isdir(os.fspath(folder) if not inspect.ismodule(folder) else "."):
            raise ArgumentError(f"runtime_env: {folder!r} is no folder of this machine.")
    return taken


def _check_installed(package: str) -> None:
    name = package.split("[")[0]
    for sign in "<>=!~; ":
        name = name.split(sign)[0]
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        why = f"nothing is installed for a task; install {package} before"
        raise not_offered(f"runtime_env={{'pip': [{package!r}]}}", why=why) from None


@contextlib.contextmanager
def _within(given: Mapping[str, Any]) -> Iterator[None]:
    """Run what follows with the variables, the folder and the modules of a ``runtime_env``."""
    before, here, path = dict(os.environ), os.getcwd(), list(sys.path)
    folders = [os.path.abspath(each) for each in given.get("py_modules", ()) if not inspect.ismodule(each)]
    os.environ.update(given.get("env_vars") or {})
    sys.path[:0] = [os.path.dirname(folder) for folder in folders]
    if given.get("working_dir"):
        os.chdir(given["working_dir"])
        sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path


def tried_again(function: Callable[..., Any], times: int, kinds: Any) -> Callable[..., Any]:
    """Return the function, called again up to ``times`` times (-1: without end) if it raises one of ``kinds``."""
    kinds = (Exception,) if kinds is True else tuple(kinds)

    @functools.wraps(function)
    def tried(*args: Any, **kwargs: Any) -> Any:
        left = times
        while True:
            try:
                return function(*args, **kwargs)
            except kinds:
                if not left:
                    raise
                left -= 1

    return tried


def in_environment(function: Callable[..., Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function, called in a ``runtime_env``."""

    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        if inspect.isgeneratorfunction(function):
            return yielding(*args, **kwargs)
        with _within(given):
            return function(*args, **kwargs)

    def yielding(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with _within(given):
            yield from function(*args, **kwargs)

    return within


def adapted(cls: type, given: Mapping[str, Any]) -> type:
    """Return the class of an actor, or of a step, made in a ``runtime_env``."""

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        os.environ.update(given.get("env_vars") or {})
        if given.get("working_dir"):
            os.chdir(given["working_dir"])
            sys.path.insert(0, os.getcwd())
        cls.__init__(self, *args, **kwargs)  # type: ignore[misc]

    if not given:
        return cls
    with contextlib.suppress(TypeError, ValueError):
        begin.__signature__ = inspect.signature(cls.__init__)  # type: ignore[attr-defined,misc]
    return type(
        cls.__name__,
        (cls,),
        {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__init__": begin},
    )


# Ray's ``ray.runtime_env``.


class RuntimeEnv(dict[str, Any]):
    """A ``runtime_env`` as a dict with these keys.

    >>> RuntimeEnv(env_vars={"MODE": "batch"})
    {'env_vars': {'MODE': 'batch'}}
    """

    def __init__(self, **given: Any) -> None:
        super().__init__({name: value for name, value in given.items() if value is not None})


class RuntimeEnvConfig(RuntimeEnv):
    """How long to wait until an environment is set up; there is nothing to wait for."""
