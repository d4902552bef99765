"""Actors: objects in workers of their own, as the user holds them and as the dispatcher knows them."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.annex.tasks.admission import CallOptions, Needs, check_known, given_retries
from headrace.annex.tasks.calls import ActorOrder, TaskCall, TaskOrder
from headrace.annex.tasks.futures import ActorId
from headrace.annex.tasks.hosting.task_host import ActorLeft, NoObject, has_async_methods
from headrace.annex.tasks.hosting.worker_core import IN_CONSTRUCTOR, restored_error
from headrace.core.engine_ports import Seat
from headrace.core.human import given_count
from headrace.engines.references import reduce_reference
from headrace.errors import (
    ActorDied,
    ArgumentError,
    NeverReady,
    NotOffered,
    UnknownArgument,
    WorkerDied,
    nearest,
)
from headrace.plan.functions import callable_name

if TYPE_CHECKING:
    from headrace.engines.local.pool import LocalPool

_OPTIONS = ("num_cpus", "num_gpus", "memory", "max_retries", "max_restarts", "size")
_SPECIAL = ("__ray_ready__", "__ray_terminate__", "__ray_call__")
METHOD_OPTIONS = "__headrace_options__"  # set on a method that says something of its calls


class ActorMethod:
    """A method of an actor. Calling it, or its ``remote``, returns a future."""

    __slots__ = ("_actor", "_name", "_options", "_single")

    def __init__(
        self, actor: ActorHandle, name: str, options: CallOptions | None = None, *, single: bool = False
    ) -> None:
        self._actor = actor
        self._name = name
        self._options = options
        self._single = single  # num_returns=1 was said: of a generator, the one value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method in the actor's process; see ``ActorHandle``."""
        if self._actor._strict:
            raise UnknownArgument(f"Methods of actors cannot be called directly: use {self._name}.remote(…).")
        return self._actor._call_method(self._name, args, kwargs, self._options)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """The same, by Ray's name."""
        if self._single and self._actor._said(self._name).num_returns == "stream":
            several = replace(self._options or CallOptions(), num_returns=1)
            return self._actor._call_method(self._name, args, kwargs, several)[0]
        return self._actor._call_method(self._name, args, kwargs, self._options)

    def options(self, **options: Any) -> ActorMethod:
        """Return the method with options of its own: ``num_returns``, and ``max_retries`` of one call.

        >>> import headrace as hr
        >>> class Halves:
        ...     def of(self, items):
        ...         middle = len(items) // 2
        ...         return items[:middle], items[middle:]
        >>> with hr.connect(workers=1) as executor:
        ...     first, second = executor.actor(Halves).of.options(num_returns=2)("abcd")
        ...     first.result(), second.result()
        ('ab', 'cd')
        """
        known = ("num_returns", "max_retries")
        if self._actor._strict and "max_task_retries" in options:  # Ray's name
            options = {**options, "max_retries": options["max_task_retries"]}
        options = {name: value for name, value in options.items() if not self._actor._strict or name in known}
        check_known(f"{self._name}.options", options, known)
        updated = (self._options or CallOptions()).updated("options", options)
        return ActorMethod(self._actor, self._name, updated, single=options.get("num_returns") == 1)


def actor_order(
    executor: Any,
    constructor: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    resources: Mapping[str, Any],
    **said: Any,
) -> ActorOrder:
    """Return what the user says about an actor, checked."""
    if not callable(constructor):
        raise ArgumentError(f"actor({constructor!r}): it takes a class, or a function that makes the object.")
    executor._core.check_open()
    label = callable_name(constructor)
    _check_arguments(label, constructor, args, kwargs)
    given = {name: value for name, value in resources.items() if value is not None}
    for name in ("retries", "restarts"):
        given_retries(f"max_{name}", said.get(name, 0))
    concurrency = said.get("concurrency")
    if concurrency is not None:
        given_count("max_concurrency", concurrency, 1)
    methods = methods_of(constructor) if isinstance(constructor, type) else None
    is_async = methods is not None and has_async_methods(constructor)
    options = executor._options.updated("actor", given)
    return ActorOrder(label, options, methods=methods, is_async=is_async, **said)


def methods_of(cls: type) -> dict[str, CallOptions]:
    """Return the names of the methods of a class, and what they say of their calls."""
    return {
        name: getattr(method, METHOD_OPTIONS, CallOptions())
        for name in dir(cls)
        if (name == "__call__" or not name.startswith("__")) and callable(method := getattr(cls, name, None))
    }


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


@dataclass(frozen=True, slots=True)
class ActorLink:
    """Stands for an actor among what a stored value refers to; see ``StoredObject``."""

    handle: ActorHandle
    number: int

    @property
    def store(self) -> Any:
        """Where its results will be."""
        return self.handle._life.store

    def reference(self, *described: Any) -> ActorHandle:
        """Return the handle."""
        return self.handle


class ActorHandle:
    """An object that lives in a worker process of its own; made by ``Executor.actor``.

    ``actor.method(…)`` calls the method there and returns a future; calls run one after another, in their order,
    unless the class has ``async`` methods or was given ``max_concurrency``. A handle may be passed to calls, which
    can call the actor, too. When the last handle is collected, the calls that were made are still carried out; then
    the process ends.
    """

    def __init__(
        self,
        executor: Any,
        life: Any,
        label: str,
        retries: int,
        methods: dict[str, CallOptions] | None,
        strict: bool = False,
    ) -> None:
        """``life``: an ``ActorLife``, or what stands for it in a worker. ``executor`` lives as long as the handle."""
        self._executor = executor
        self._life = life
        self._label = label
        self._retries = retries
        self._methods = methods
        self._number = -1
        self._strict = strict
        self._orders: dict[str, TaskOrder] = {}  # of methods without options of their own
        if isinstance(life, ActorLife):
            weakref.finalize(self, life.handles_collected).atexit = False

    @property
    def __call__(self) -> Callable[..., Any]:
        """The object itself, called."""
        return self._bound_method("__call__")

    def __getattr__(self, name: str) -> ActorMethod:
        if (name.startswith("__") and name not in _SPECIAL) or name in ("_methods", "_life"):
            raise AttributeError(name)
        return self._bound_method(name)

    def __reduce__(self) -> Any:
        return reduce_reference(self, *self._described)

    def __identified_by__(self) -> Any:
        """Raise ``TypeError``: nobody can tell whether another actor would answer the same."""
        raise TypeError("an actor is no value")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and (other is self or other._name == self._name)

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        name = self._label.rpartition(".")[2]
        return f"Actor({name}, {self._actor_id})" if self._strict else f"<actor {self._label}>"

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *(self._methods or ())})

    # ------------------------------------------------------------ for the executor; see ``StoredObject``

    def _link(self) -> Any:
        """Return what stands for it among the things that a stored value refers to."""
        return ActorLink(self, self._name) if isinstance(self._life, ActorLife) else self._life

    @property
    def _actor_id(self) -> ActorId:
        return ActorId(f"{self._name:032x}")

    @property
    def _described(self) -> tuple[Any, ...]:
        return self._label, self._retries, self._methods, self._strict

    @property
    def _name(self) -> int:
        if not isinstance(self._life, ActorLife):
            return self._life.number  # type: ignore[no-any-return]
        if self._number < 0:
            self._named(self._life.store.name(self))
        return self._number

    def _kill(self, *, no_restart: bool) -> None:
        """End the actor."""
        if isinstance(self._life, ActorLife):
            self._life.kill(no_restart=no_restart)
        else:
            self._executor._core.note(("kill", self._life.number, no_restart))

    def _named(self, number: int) -> None:
        """It has a number, by which workers know it."""
        self._number = number

    def _bound_method(self, name: str) -> ActorMethod:
        if self._methods is not None and name not in self._methods and name not in _SPECIAL:
            known = [known for known in self._methods if not known.startswith("_")]
            raise NotOffered(f"{self._label} has no method {name!r}.{nearest(name, known)}")
        return ActorMethod(self, name)

    def _call_method(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions | None
    ) -> Any:
        order = self._orders.get(name) if options is None else None
        if order is None:
            order = self._ordered(name, options)
            if options is None:
                self._orders[name] = order
        return self._executor._core.submit(order, name, args, kwargs, self._life)

    def _said(self, name: str) -> CallOptions:
        """Return what the class says of a method's calls."""
        return (self._methods or {}).get(name) or CallOptions()

    def _ordered(self, name: str, options: CallOptions | None) -> TaskOrder:
        """Return what is said about a call of a method."""
        options, said = options or CallOptions(), self._said(name)
        if options.max_retries is None:
            retries = self._retries if said.max_retries is None else said.max_retries
            options = replace(options, max_retries=retries)
        if self._strict:
            options = replace(options, strict=True)
        returns = said.num_returns if options.num_returns is None else options.num_returns
        return TaskOrder(f"{self._label}.{name}", options, returns, self._name)


# ---------------------------------------------------------------- what the dispatcher knows of them

MAX_TRIES = 3  # deaths in a row in the constructor
MOST_SENT = (
    16  # calls of an actor that runs one after another: those behind the first do not wait for the driver
)


class ActorLife:
    """What the dispatcher knows of an actor; its methods are for its thread, but for the first few.

    ``dispatcher`` is a ``Dispatcher``, ``construction`` the call of the constructor. That is repeated in the worker
    that replaces one that died, as often as ``order`` says.
    """

    def __init__(self, dispatcher: Any, construction: TaskCall, order: ActorOrder, needs: Needs) -> None:
        self.needs = needs
        self.construction = construction
        self.ended_by: BaseException | None = None
        self.handle: Callable[[], Any]  # set when it is made
        self._dispatcher = dispatcher
        self._restarts = order.restarts
        self._concurrency = order.concurrency
        self._one_by_one = (order.concurrency or (1000 if order.is_async else 1)) == 1
        self._most = MOST_SENT if self._one_by_one else order.concurrency or 1000
        self._waiting: deque[TaskCall] = deque()
        self._running: dict[TaskCall, None] = {}
        self._orders = itertools.count()
        self._worker: LocalPool | None = None
        self._admitted = False
        self._constructing = self._constructed = self._was_made = False
        self._without_handles = False
        self._failed_constructions = 0
        construction.life, construction.method = self, "construct"

    # ------------------------------------------------------------ from any thread

    @property
    def store(self) -> Any:
        """Where results are kept."""
        return self._dispatcher.store

    @property
    def alive(self) -> bool:
        """Whether it accepts calls, as far as is known."""
        return self.ended_by is None

    def handles_collected(self) -> None:
        """The last handle was collected: the calls that were made are still carried out."""
        self._dispatcher.post(self._handles_collected)

    def kill(self, *, no_restart: bool = True) -> None:
        """End the actor at once; without ``no_restart`` it begins again, if it may."""
        if no_restart:
            error = ActorDied(f"{self.construction.label} was killed on request.")
            self._dispatcher.post(partial(self.end, error, kill=True))
        else:
            self._dispatcher.post(self._kill)

    # ------------------------------------------------------------ from the dispatcher

    def start(self, seat: Seat) -> None:
        """It was admitted: start the worker, and construct the object."""
        self._admitted = True
        workers, made = self._dispatcher.workers, self.construction
        if self._is_done:
            self.end(self._no_handles())
            return
        try:
            self._worker = workers.start(made.label, workers.kind(made.threads, seat))
        except Exception as error:
            self.end(error)
            return
        self.go_on()

    def end(self, error: BaseException, *, kill: bool = False) -> None:
        """Fail the calls that wait, and all that are to come, with ``error``; release what it had."""
        if self.ended_by is not None:
            return
        self.ended_by = error
        calls = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        if self._worker is not None:
            self._worker.close(kill=kill or bool(calls) or not self._constructed)
        self._dispatcher.remove_actor(self, admitted=self._admitted)
        for call in calls:
            self._dispatcher.fail(call, error)

    def add(self, call: TaskCall) -> None:
        """Take in a call, after those that it has."""
        call.order, call.method = next(self._orders), "call"
        self._waiting.append(call)

    def withdraw(self, call: TaskCall) -> None:
        """A call that waits was cancelled."""
        if call in self._waiting:
            self._waiting.remove(call)
            self.go_on()

    def go_on(self) -> None:
        """Construct the object, or send the first calls that wait, as far as their arguments are there."""
        if self.ended_by is not None or self._constructing:
            return
        if self._worker is not None and not self._constructed and not self.construction.pending:
            self._construct()
            return
        while self._constructed and len(self._running) < self._most and self._waiting:
            if self._waiting[0].pending:
                break
            call = self._waiting.popleft()
            try:
                call.link_arguments()
            except BaseException as error:
                self._dispatcher.fail(call, error)
                continue
            if call.begin():
                self._running[call] = None
                assert self._worker is not None
                self._dispatcher.send(call, self._worker)
        if self._is_done:
            self.end(self._no_handles())

    def answered(self, call: TaskCall, error: BaseException | None) -> bool:
        """A call was answered; return whether nothing is left to do about it."""
        if call is self.construction:
            self._construct_answered(error)
            return True
        if call not in self._running:  # the actor has ended
            return True
        del self._running[call]
        if isinstance(error, ActorLeft):
            left = ActorDied(
                f"{self.construction.label} has ended its own process, by sys.exit() or exit_actor()."
            )
            self.end(left)
            self._dispatcher.fail(call, left)
        elif isinstance(error, NoObject):
            self._restart(call, "it ended between two calls")
        elif isinstance(error, WorkerDied):
            # One after another: the first one is to blame, and the others have not begun.
            if self._constructed or not self._one_by_one:
                call.deaths += not isinstance(error, NeverReady)
            self._restart(call, str(error))
        else:
            return False
        self.go_on()
        return True

    # ------------------------------------------------------------ the object

    @property
    def _is_done(self) -> bool:
        """Whether nobody can call it any more, and all that was called is done."""
        return self._without_handles and not self._waiting and not self._running

    def _no_handles(self) -> ActorDied:
        return ActorDied(f"{self.construction.label} has ended: its last handle was collected.")

    def _construct(self) -> None:
        made = self.construction
        try:
            made.link_arguments()
        except BaseException as error:
            self.end(error)
            return
        self._constructing = True
        made.said = self._concurrency, self._was_made
        assert self._worker is not None
        self._dispatcher.send(made, self._worker)

    def _construct_answered(self, error: BaseException | None) -> None:
        self._constructing, label = False, self.construction.label
        if error is None:
            self._constructed = self._was_made = True
            self._failed_constructions = 0
        elif isinstance(error, ActorLeft):
            self.end(ActorDied(f"{label} ended itself in its constructor."))
        elif isinstance(error, WorkerDied):
            self._failed_constructions += 1
            if self._failed_constructions == MAX_TRIES:
                self.end(ActorDied(f"{label} ended its worker {MAX_TRIES} times, the last time: {error}."))
        else:
            raised = restored_error(error)
            with contextlib.suppress(AttributeError):
                setattr(raised, IN_CONSTRUCTOR, True)
            self.end(raised)
        self.go_on()

    def _restart(self, call: TaskCall, why: str) -> None:
        """The worker died: construct the object again in its replacement, if allowed, and try the call again."""
        if self._constructed:  # else another call has found that out
            if not self._restarts:
                self._running[call] = None
                self.end(ActorDied(f"{call.label}: the actor's process ended: {why}."))
                return
            self._restarts -= self._restarts > 0
            self._constructed = False
        if call.may_be_tried_again:  # where it was
            self._waiting = deque(sorted([*self._waiting, call], key=lambda each: each.order))
        else:
            times = "once" if call.deaths == 1 else f"{call.deaths} times"
            died = ActorDied(f"{call.label} ended its actor's process {times}: {why}.")
            self._dispatcher.fail(call, died)

    def _kill(self) -> None:
        if self.ended_by is None and self._worker is not None and self.construction.process >= 0:
            self._worker.kill(self.construction.process, "it was killed on request")

    def _handles_collected(self) -> None:
        self._without_handles = True
        self.go_on()
