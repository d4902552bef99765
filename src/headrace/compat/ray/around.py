"""What is put around a function or class before it travels: options of Ray's that a worker carries out by itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.compat.ray.offered import not_offered
from headrace.errors import ArgumentError

GROUP = "__headrace_group__"  # set on a method of a concurrency group


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


def adapted(cls: type, given: Mapping[str, Any], groups: Mapping[str, int] | None, own: int) -> type:
    """Return the class of an actor, made in a ``runtime_env``, and with methods that keep to their groups.

    ``groups``: how many methods of each may run at a time; ``own`` of those in none.
    """
    if not given and not groups:
        return cls
    made: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        os.environ.update(given.get("env_vars") or {})
        if given.get("working_dir"):
            os.chdir(given["working_dir"])
            sys.path.insert(0, os.getcwd())
        self.__dict__["__headrace_limits__"] = {}
        cls.__init__(self, *args, **kwargs)  # type: ignore[misc]

    with contextlib.suppress(TypeError, ValueError):
        begin.__signature__ = inspect.signature(cls.__init__)  # type: ignore[attr-defined,misc]
    made["__init__"] = begin
    for name in dir(cls) if groups else ():
        method = inspect.getattr_static(cls, name)
        if inspect.isfunction(method) and not name.startswith("__"):
            group = getattr(method, GROUP, None)
            if group is not None and group not in groups:  # type: ignore[operator]
                raise ArgumentError(
                    f"{cls.__name__}.{name} is of the group {group!r}, and the groups are {[*groups]}."  # type: ignore[misc]
                )
            made[name] = _limited(method, group, own if group is None else groups[group])  # type: ignore[index]
    return type(cls.__name__, (cls,), made)


def _limited(method: Any, group: str | None, most: int) -> Any:
    def limit(self: Any, kind: Any) -> Any:
        return self.__dict__["__headrace_limits__"].setdefault(group, kind(most))

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
            async with limit(self, asyncio.Semaphore):
                return await method(self, *args, **kwargs)

        return awaited
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        return method

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        with limit(self, threading.Semaphore):
            return method(self, *args, **kwargs)

    return called


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
