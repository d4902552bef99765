"""``ray.remote``: functions and classes whose calls run in workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from headrace.compat.ray.offered import OPTIONS, not_offered
from headrace.compat.ray.session import session
from headrace.errors import ArgumentError, HeadraceError

_CALLS = ("num_cpus", "num_gpus", "memory", "max_retries")
_ACTORS = {
    "num_cpus": "num_cpus", "num_gpus": "num_gpus", "memory": "memory", "max_restarts": "max_restarts",
    "max_task_retries": "max_retries",
}  # fmt: skip


class RemoteFunction:
    """A function whose ``remote(…)`` runs it in a worker and returns a reference to the result."""

    def __init__(self, function: Any, options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        _check(options, (*_CALLS, "name"))  # a task's name is shown by a dashboard, and nowhere else
        self._options = {name: value for name, value in options.items() if name in _CALLS}

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in a worker."""
        executor = session()
        chosen = executor.options(**self._options) if self._options else executor
        return chosen.submit(self._function, *args, **kwargs)

    def options(self, **options: Any) -> RemoteFunction:
        """Return the function with other needs."""
        return RemoteFunction(self._function, {**self._options, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise Misused(
            f"{self._function.__qualname__}(…) runs in a worker: call {self._function.__qualname__}.remote(…)."
        )


class ActorClass:
    """A class whose ``remote(…)`` makes an object in a worker of its own and returns its handle."""

    def __init__(self, cls: Any, options: Mapping[str, Any]) -> None:
        self.__doc__ = cls.__doc__
        self.__name__ = cls.__name__
        self._cls = cls
        _check(options, tuple(_ACTORS))
        self._options = {name: value for name, value in options.items() if name in _ACTORS}

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Make the object."""
        ours = {_ACTORS[name]: value for name, value in self._options.items()}
        return session().actor(self._cls, *args, **ours, **kwargs)

    def options(self, **options: Any) -> ActorClass:
        """Return the class with other needs."""
        return ActorClass(self._cls, {**self._options, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise Misused(f"{self.__name__}(…) lives in a worker: make it with {self.__name__}.remote(…).")


class Misused(HeadraceError, TypeError):
    """A remote function or class was called as if it were here."""


def remote(*args: Any, **options: Any) -> Any:
    """Make a function or class remote: ``@ray.remote``, or ``@ray.remote(num_cpus=2)``.

    Functions take ``num_cpus``, ``num_gpus``, ``memory`` and ``max_retries``; classes ``num_cpus``, ``num_gpus``,
    ``memory``, ``max_restarts`` and ``max_task_retries``. Other options of Ray's are passed over where they ask for
    nothing, and not offered else.

    >>> @remote(num_cpus=1)
    ... class Counter:
    ...     total = 0
    ...     def add(self, number):
    ...         self.total += number
    ...         return self.total
    >>> from headrace.compat import ray
    >>> counter = Counter.remote()
    >>> ray.get([counter.add.remote(n) for n in (1, 2, 3)])
    [1, 3, 6]
    >>> ray.shutdown()
    """
    if len(args) == 1 and not options and callable(args[0]):
        return _made(args[0], {})
    if args or not options:
        raise ArgumentError("ray.remote stands above a function or class, or takes options by name.")
    return functools.partial(_made, options=options)


def _made(what: Any, options: Mapping[str, Any]) -> Any:
    if isinstance(what, (ActorClass, RemoteFunction)):
        name = getattr(what, "__name__", "It")
        raise Misused(f"{name} is remote already: {name}.options(…) gives it other options.")
    if not callable(what):
        raise ArgumentError(f"ray.remote({what!r}): it takes a function or a class.")
    return ActorClass(what, options) if isinstance(what, type) else RemoteFunction(what, options)


def _check(options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name, value in options.items():
        if name not in known and not (name in OPTIONS and OPTIONS[name].takes(value)):
            why = OPTIONS[name].reason if name in OPTIONS else ""
            shown = f"{name}={value!r}" if name == "num_returns" else f"ray.remote({name}=…)"
            raise not_offered(shown, [*known, "num_returns"], why)
