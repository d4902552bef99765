"""Actors as the user holds them."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import ArgumentError, NotOffered, NotPicklable, UnknownArgument, nearest
from headrace.plan.functions import callable_name
from headrace.tasks.actor_life import ActorLife
from headrace.tasks.admission import Needs
from headrace.tasks.calls import TaskCall
from headrace.tasks.futures import CallFuture

if TYPE_CHECKING:
    from headrace.engines.object_store import StoredObject
    from headrace.tasks.core import Core
    from headrace.tasks.resources import CallOptions

_OPTIONS = ("num_cpus", "num_gpus", "memory", "max_retries", "max_restarts", "size")


class ActorMethod:
    """A method of an actor. Calling it, or its ``remote``, returns a future."""

    __slots__ = ("_actor", "_name")

    def __init__(self, actor: ActorHandle, name: str) -> None:
        self._actor = actor
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call the method in the actor's process; see ``ActorHandle``."""
        return self._actor._call_method(self._name, args, kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """The same, by Ray's name."""
        return self._actor._call_method(self._name, args, kwargs)


class OwningExecutor(Protocol):
    """The executor that actors belong to; it lives as long as they do."""

    _core: Core
    _options: CallOptions


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """What actors of one kind are made of: their constructor with its arguments, serialised once, and their needs."""

    executor: OwningExecutor
    cls: Any
    label: str
    stored: StoredObject
    references: tuple[Any, ...]
    needs: Needs
    threads: int
    retries: int

    @classmethod
    def checked(
        cls,
        executor: OwningExecutor,
        constructor: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        resources: dict[str, Any],
        retries: int,
        workers: int = 1,
    ) -> ActorSpec:
        """Return a spec of what the user gave, checked."""
        if not callable(constructor):
            raise ArgumentError(
                f"actor({constructor!r}): it takes a class, or a function that makes the object."
            )
        executor._core.check_open()
        label = callable_name(constructor)
        _check_arguments(label, constructor, args, kwargs)
        options = executor._options.updated(
            "actor", {name: v for name, v in resources.items() if v is not None}
        )
        needs = executor._core.needs(label, options, least=0.0, workers=workers)
        call = executor._core.call(label, constructor, args, kwargs, None, 0)
        threads = executor._core.threads(options.num_cpus, workers)
        return cls(executor, constructor, label, call.stored, tuple(call.references), needs, threads, retries)

    def start(self, restarts: int) -> ActorHandle:
        """Start one."""
        construction = TaskCall(self.label, self.stored, self.references, CallFuture(self.label), 0)
        dispatcher = self.executor._core.dispatcher
        life = ActorLife(dispatcher, construction, self.needs, self.threads, restarts)
        life.wait_for_arguments()
        dispatcher.add_actor(life)
        return ActorHandle(self.executor, self.cls, life, self.label, self.retries)


def _check_arguments(label: str, constructor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(constructor)
    except (TypeError, ValueError):
        return  # written in C, perhaps
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        known = [*signature.parameters, *_OPTIONS]
        unknown = [name for name in kwargs if name not in known]
        hint = nearest(unknown[0], known) if unknown else ""
        raise UnknownArgument(f"{label}(…) cannot be made with these arguments: {error}.{hint}") from None


class ActorHandle:
    """An object that lives in a worker process of its own; made by ``Executor.actor``.

    ``actor.method(…)`` calls the method there and returns a future; calls run one after another, in their order.
    When the last handle is collected, the calls that were made are still carried out; then the process ends.
    """

    def __init__(self, executor: OwningExecutor, cls: Any, life: ActorLife, label: str, retries: int) -> None:
        self._executor = executor
        self._cls = cls
        self._life = life
        self._label = label
        self._retries = retries
        weakref.finalize(self, life.handles_collected).atexit = False

    @property
    def __call__(self) -> Callable[..., CallFuture[Any]]:
        """The object itself, called."""
        return self._bound_method("__call__")

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("__") or name in ("_cls", "_life"):
            raise AttributeError(name)
        return self._bound_method(name)

    def __reduce__(self) -> Any:
        raise NotPicklable(
            f"The handle of an actor ({self._label}) stays in the process that made it: call the actor from there, "
            "and pass its results on."
        )

    def __repr__(self) -> str:
        return f"<actor {self._label}>"

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._cls)})

    def _bound_method(self, name: str) -> ActorMethod:
        if isinstance(self._cls, type) and not hasattr(self._cls, name):
            known = [known for known in dir(self._cls) if not known.startswith("_")]
            raise NotOffered(f"{self._label} has no method {name!r}.{nearest(name, known)}")
        return ActorMethod(self, name)

    def _call_method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallFuture[Any]:
        executor = self._executor
        executor._core.check_open()
        label = f"{self._label}.{name}"
        call = executor._core.call(label, name, args, kwargs, self._retries, 0)
        call.future.on_cancel(partial(self._life.cancelled, call))
        self._life.post(call)
        return call.future
