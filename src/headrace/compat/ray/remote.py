"""``ray.remote``: functions and classes whose calls run in workers."""

from __future__ import annotations

import functools
import inspect
import weakref
from abc import ABC
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.annex.tasks import CallFuture, Ref
from headrace.annex.tasks.actors import actor_order
from headrace.annex.tasks.admission import CALL_RETRIES, CallOptions
from headrace.annex.tasks.calls import TaskOrder, pickled_once
from headrace.annex.tasks.futures import ResultStream
from headrace.compat.ray.around import adapted, environment, in_environment, tried_again
from headrace.compat.ray.calls import DynamicObjectRefGenerator
from headrace.compat.ray.offered import check_options
from headrace.compat.ray.session import named_resources, session, session_environment
from headrace.core.terminal import warn
from headrace.errors import ArgumentError, HeadraceError, UnknownArgument
from headrace.plan.functions import callable_name

_CALLS = ("num_cpus", "num_gpus", "memory", "max_retries", "num_returns")
_BESIDE = ("resources", "runtime_env", "scheduling_strategy")  # of functions and of classes
_ACTORS = {
    "num_cpus": "num_cpus", "num_gpus": "num_gpus", "memory": "memory", "max_restarts": "max_restarts",
    "max_task_retries": "max_retries", "max_concurrency": "max_concurrency",
}  # fmt: skip


_ANYTHING = inspect.signature(lambda *args, **kwargs: None)
_NO_ORDER = (None, TaskOrder(""))
_NAMES = ("name", "get_if_exists", "lifetime", "namespace")


class RemoteFunction:
    """A function whose ``remote(…)`` runs it in a worker and returns a reference to the result."""

    def __init__(self, function: Any, options: Mapping[str, Any]) -> None:
        if inspect.iscoroutinefunction(function):
            raise ArgumentError(
                f"ray.remote: {callable_name(function)} is async, and only methods of actors are awaited. Make it a "
                "method, or call asyncio.run(…) in a function that is not async."
            )
        functools.update_wrapper(self, function)
        self._function = function
        # A task's name is shown by a dashboard, and nowhere else.
        check_options("ray.remote", options, (*_CALLS, *_BESIDE, "retry_exceptions", "name"))
        self._given = dict(options)
        self._options = {name: value for name, value in options.items() if name in _CALLS}
        self._is_dynamic = self._options.get("num_returns") == "dynamic"
        if self._is_dynamic:
            del self._options["num_returns"]
        CallOptions().updated("ray.remote", self._options)  # for what it raises
        self._signature: inspect.Signature | None = None
        self._order: tuple[Any, TaskOrder] = _NO_ORDER  # of the executor that was used last
        self._pickled: Any = None  # the function as it was at the first call, as Ray's workers know it

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in a worker."""
        executor = session()
        executor._core.check_open()
        self._check_arguments(args, kwargs)
        core, order = self._order
        if core is None or core() is not executor._core:
            order = self._ordered(executor._options)
            self._order = weakref.ref(executor._core), order
        if self._pickled is None:
            self._pickled = pickled_once(self._around())
        found = executor._core.submit(order, self._pickled, args, kwargs)
        if order.returns == 1:  # the one value that it yields
            (found,) = found
        return None if order.returns == 0 else found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": _NO_ORDER, "_pickled": None}

    def _ordered(self, given: Any) -> TaskOrder:
        """Return what is said about each call: ``returns`` is 1 for the one value of a generator."""
        options = self._options
        yields = inspect.isgeneratorfunction(self._function) and not self._is_dynamic
        if "num_returns" not in options and yields:
            options = {**options, "num_returns": "streaming"}
        named = named_resources(self._given.get("resources"))
        chosen = replace(given.updated("options", options), strict=True, resources=named)
        single = options.get("num_returns") == 1 and yields
        return TaskOrder(callable_name(self._function), chosen, 1 if single else chosen.num_returns)

    def options(self, **options: Any) -> RemoteFunction:
        """Return the function with other needs."""
        return RemoteFunction(self._function, {**self._given, **options})

    def _remote(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        return self.options(**options).remote(*args, **(kwargs or {}))

    def _around(self) -> Any:
        """Return the function with what its worker does around it."""
        function, again = self._function, self._given.get("retry_exceptions")
        if again:
            times = self._options.get("max_retries")
            function = tried_again(function, CALL_RETRIES if times is None else times, again)
        if self._is_dynamic:
            function = functools.partial(_all_references, function)
        given = {**session_environment(), **environment(self._given.get("runtime_env"))}
        return in_environment(function, given) if given else function

    def _check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise, as Ray does, before the call is on its way."""
        if self._signature is None:
            try:
                self._signature = inspect.signature(self._function)
            except (TypeError, ValueError):  # it does not tell
                self._signature = _ANYTHING
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UnknownArgument(f"{callable_name(self._function)}.remote(…): {error}.") from None

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
        check_options("ray.remote", options, (*_ACTORS, *_NAMES, *_BESIDE))
        self._options = dict(options)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Make the object."""
        given = self._options
        ours = {
            _ACTORS[name]: value for name, value in given.items() if name in _ACTORS and value is not None
        }
        resources = {name: ours.get(name) for name in ("num_cpus", "num_gpus", "memory")}
        executor = session()
        if not isinstance(given.get("namespace"), (str, type(None))):
            raise UnknownArgument(f"namespace={given['namespace']!r}: a namespace is text.")
        if given.get("get_if_exists") and given.get("name") is None:
            raise ArgumentError("get_if_exists=True is for an actor with a name: name=….")
        if given.get("lifetime") == "detached":
            warn(
                f"{self.__name__}: a detached actor ends with the program, as there is no cluster to keep it."
            )
        said = {
            "retries": ours.get("max_retries", 0),
            "restarts": ours.get("max_restarts", 0),
            "concurrency": ours.get("max_concurrency"),
            "name": _name(given.get("name")),
            "get_if_exists": bool(given.get("get_if_exists")),
            "detached": given.get("lifetime") == "detached",
        }
        beside = {**session_environment(), **environment(given.get("runtime_env"))}
        cls = adapted(self._cls, beside)
        order = actor_order(executor, cls, args, kwargs, resources, **said)
        named = named_resources(given.get("resources"))
        ours_strictly = replace(order.options, strict=True, resources=named)
        order = replace(order, methods=_streaming(cls, order.methods), options=ours_strictly)
        return executor._core.start_actor(executor, cls, args, kwargs, order)

    def _remote(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        return self.options(**options).remote(*args, **(kwargs or {}))

    def options(self, **options: Any) -> ActorClass:
        """Return the class with other needs."""
        return ActorClass(self._cls, {**self._options, **options})

    def __getattr__(self, name: str) -> Any:
        """An attribute of the class."""
        if name.startswith("__") or name == "_cls":
            raise AttributeError(name)
        return getattr(self._cls, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__
        raise Misused(f"Actors cannot be instantiated directly: {name}.remote(…) makes one, in a worker.")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        raise Misused(
            f"Inheriting from actor classes is not currently supported. Derive from the class that {self.__name__} "
            "was before ray.remote, and make that remote."
        )


class Misused(HeadraceError, TypeError):
    """A remote function or class was called as if it were here."""


def remote(*args: Any, **options: Any) -> Any:
    """Make a function or class remote: ``@ray.remote``, or ``@ray.remote(num_cpus=2)``.

    Functions take ``num_cpus``, ``num_gpus``, ``memory``, ``max_retries`` and ``num_returns``; classes ``num_cpus``,
    ``num_gpus``, ``memory``, ``max_restarts``, ``max_task_retries``, ``max_concurrency``, ``name``,
    ``get_if_exists``, ``lifetime`` and ``namespace``, which makes no difference. Other options of Ray's are passed
    over where they ask for nothing, and not offered else.
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


def _streaming(cls: type, methods: Any) -> Any:
    """Generators among methods return streams, unless they say otherwise."""
    for name, said in (methods or {}).items():
        function = inspect.getattr_static(cls, name, None)
        if said.num_returns is None and (
            inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        ):
            methods[name] = replace(said, num_returns="stream")
    return methods


def _name(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise UnknownArgument(f"name={name!r}: an actor's name is text.")
    return name


def _all_references(function: Any, *args: Any, **kwargs: Any) -> DynamicObjectRefGenerator:
    """Put each value that a generator yields; what it raises is raised by the last reference."""
    refs: list[Any] = []
    try:
        for value in function(*args, **kwargs):
            refs.append(session().put(value))
    except Exception as error:
        refs.append(RemoteFunction(_raise, {"max_retries": 0}).remote(error))
    return DynamicObjectRefGenerator(refs)


def _raise(error: Exception) -> None:
    raise error


# ----------------------------------------------------------------
# Ray's one name for what ``put`` and what calls return.


class ObjectRef(ABC):  # noqa: B024 - only a name: nobody implements it
    """A reference to a value that is put, or to the result of a call."""


class ObjectRefGenerator(ABC):  # noqa: B024 - only a name, too
    """The references to what a generator yields."""


ObjectRefGenerator.register(ResultStream)
ObjectRef.register(Ref)
ObjectRef.register(CallFuture)
