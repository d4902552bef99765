"""What an executor and its views share: the dispatcher, and how calls are prepared for it."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.annex.tasks.actors import ActorHandle, ActorLife
from headrace.annex.tasks.admission import CALL_RETRIES, LEAST_CPUS, Admission, CallOptions, Needs
from headrace.annex.tasks.calls import (
    ActorOrder,
    TaskCall,
    TaskOrder,
    closed,
    only_here,
    results_of,
    waited_for,
)
from headrace.annex.tasks.dispatcher import Dispatcher, ExecutorWorkers
from headrace.annex.tasks.futures import CallFuture, Pieces
from headrace.annex.tasks.hosting.worker_core import not_picklable
from headrace.annex.tasks.requests import Requests, WorkerLine
from headrace.core.terminal import warn
from headrace.engines.local import machine
from headrace.engines.local.pool import LocalEngine
from headrace.engines.local.spawner import Starting
from headrace.engines.object_store import StoredObject
from headrace.engines.references import holder_of
from headrace.errors import ArgumentError, HeadraceError, ResourcesUnavailable


class NameTaken(ArgumentError):
    """Two actors cannot have one name."""


class Core:
    """What an executor and its views share."""

    in_worker = False

    @property
    def _core(self) -> Core:
        """Itself: it stands for the executor of an actor that a worker has made."""
        return self

    def __init__(
        self,
        cpus: float,
        memory: int,
        devices: Sequence[str],
        starting: Starting,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        # Called by the garbage collector, in any thread.
        def on_release(number: int, workers: set[int]) -> None:
            actions.put(partial(engine.forget, number, workers))

        engine = LocalEngine(devices=devices, starting=starting)
        workers = ExecutorWorkers(engine, devices, max(1, int(cpus)), time.monotonic)
        self.cores = machine.capacity().cpus  # what native libraries may use
        self.store = engine.object_store(on_release)
        self.admission = Admission(cpus, memory, len(devices), resources)
        self.dispatcher = Dispatcher(engine, self.store, self.admission, workers, actions)
        self._prepared: tuple[CallOptions | None, Needs, int] = (None, Needs(), 1)  # of the last call
        self.lock = threading.Lock()
        self._check_process = only_here()
        self.is_shut = False
        self.requests = Requests(self, self.dispatcher.post)
        self.dispatcher.requests = self.requests
        workers.line = partial(WorkerLine, self.requests)
        self._naming = threading.Lock()
        self._names: weakref.WeakValueDictionary[str, ActorHandle] = weakref.WeakValueDictionary()
        self._refused: dict[int, Exception] = {}
        self._detached: list[ActorHandle] = []  # they live as long as the executor
        self._warned = False
        atexit.register(self._at_exit)

    def shutdown(self, *, cancel: bool = False, kill: bool = False) -> None:
        """Take no more calls."""
        with self.lock:
            self.is_shut = True
        self._detached.clear()
        self.dispatcher.shutdown(cancel=cancel, kill=kill)

    def join(self) -> None:
        """Wait until all is over."""
        if threading.current_thread() is not self.dispatcher.thread:
            self.dispatcher.thread.join()
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self.shutdown()
        self.join()

    # ------------------------------------------------------------ preparing calls

    def check_open(self) -> None:
        """Raise ``ExecutorClosed`` after the end."""
        if self.is_shut:
            raise closed()

    def submit(
        self, order: TaskOrder, what: Any, args: Sequence[Any], kwargs: dict[str, Any], life: Any = None
    ) -> Any:
        """Have a function called, or the method ``what`` of the actor with that ``life``.

        Return one future, or several, or a stream, as ``order.returns`` says.
        """
        self._check_process()
        value = (what, tuple(args), kwargs, order.options.strict)
        stored, references = self.put(order.label, value, once=True)
        call = self.task_call(order, stored, references, waited_for(value, references))
        self.prepare(call, order.options, life)
        with self.lock:
            self.check_open()
            self.dispatcher.post(partial(self.dispatcher.accept, call))
        return results_of(call)

    def task_call(
        self, order: TaskOrder, stored: StoredObject, references: Sequence[Any], direct: Sequence[int]
    ) -> TaskCall:
        """Return a call of what is stored, with its future."""
        future: CallFuture[Any] = CallFuture(order.label, self.store)
        call = TaskCall(order.label, stored, references, future, direct=direct, said=(order.returns,))
        if order.returns is not None:
            count = None if order.returns == "stream" else int(order.returns)
            call.pieces = Pieces(future, order.label, count)
        return call

    def prepare(self, call: TaskCall, options: CallOptions, life: ActorLife | None) -> None:
        """Say who carries out a call, and what a function needs; ``ResourcesUnavailable`` if it can never run."""
        retries = options.max_retries
        call.life, call.max_retries = life, retries or 0
        if life is None:
            call.max_retries = CALL_RETRIES if retries is None else retries
            known, needs, threads = self._prepared
            if known is not options:  # else they are the same, and were checked
                needs, threads = (
                    self.needs(call.label, options, least=LEAST_CPUS),
                    self.threads(options.num_cpus),
                )
                self._prepared = options, needs, threads
            call.needs, call.threads = needs, threads
        dispatcher = self.dispatcher
        call.future.on_cancel(partial(dispatcher.cancelled, call), partial(dispatcher.stop, call))

    # ------------------------------------------------------------ actors

    def start_actor(
        self, executor: Any, cls: Any, args: Sequence[Any], kwargs: dict[str, Any], order: ActorOrder
    ) -> ActorHandle:
        """Have an actor made; return its handle."""
        if order.name is not None and order.get_if_exists:
            found = self.named_actor(order.name)
            if found is not None:
                return found
        return self.start_actors(executor, cls, args, kwargs, order, 1)[0]

    def start_actors(
        self,
        executor: Any,
        cls: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        order: ActorOrder,
        size: int,
    ) -> list[ActorHandle]:
        """Have several actors made of the same; return their handles."""
        self._check_process()
        self.needs(order.label, order.options, least=0.0, workers=size)
        value = (cls, tuple(args), kwargs, order.options.strict)
        stored, references = self.put(order.label, value)
        direct = waited_for(value, references)
        return [self.make_actor(executor, order, stored, references, direct) for _ in range(size)]

    def make_actor(
        self,
        executor: Any,
        order: ActorOrder,
        stored: StoredObject,
        references: list[Any],
        direct: Sequence[int],
    ) -> ActorHandle:
        """Start an actor whose constructor, with its arguments, is stored."""
        needs = self.needs(order.label, order.options, least=0.0)
        future: CallFuture[Any] = CallFuture(order.label, self.store)
        construction = TaskCall(order.label, stored, references, future, direct=direct)
        construction.threads = self.threads(order.options.num_cpus)
        life = ActorLife(self.dispatcher, construction, order, needs)
        handle = ActorHandle(executor, life, order.label, order.retries, order.methods, order.options.strict)
        life.handle = weakref.ref(handle)
        if order.name is not None:
            self._name_actor(order, handle)
        self.dispatcher.post(partial(self.dispatcher.add_actor, life))
        return handle

    def named_actor(self, name: str) -> ActorHandle | None:
        """Return the handle of a living actor by its name."""
        with self._naming:
            found = self._names.get(name)
            return found if found is not None and found._life.alive else None

    def refuse(self, number: int, error: Exception) -> None:
        """An actor that a worker wants to make cannot be made."""
        self._refused[number] = error

    def refusal(self, number: int) -> Exception | None:
        """Return why an actor could not be made, if that is so."""
        return self._refused.get(number)

    def _name_actor(self, order: ActorOrder, handle: ActorHandle) -> None:
        assert order.name is not None
        with self._naming:
            known = self._names.get(order.name)
            if known is not None and known._life.alive:
                raise NameTaken(
                    f"There is an actor with the name {order.name!r} already: "
                    "get it by its name (get_if_exists=True), or kill it first."
                )
            self._names[order.name] = handle
            if order.detached:
                self._detached.append(handle)

    def put(self, label: str, value: Any, *, once: bool = False) -> tuple[StoredObject, list[Any]]:
        """Store a value; return it, and the references in it. ``NotPicklable`` names what cannot be pickled."""
        try:
            stored, references = self.store.put(value, once=once)
            for reference in references:
                store = holder_of(reference).store
                if store is not self.store:
                    raise ArgumentError(
                        f"{label} was given a {type(reference).__name__} of another executor, or of one that was "
                        "shut down. A value belongs to the executor that it was put into: put it into this one."
                    )
            return stored, references
        except HeadraceError:
            raise
        except Exception as error:
            raise not_picklable(label, value, error) from error

    def needs(self, label: str, options: CallOptions, *, least: float, workers: int = 1) -> Needs:
        """Return what each of ``workers`` calls or actors needs; raise ``ResourcesUnavailable`` if it never fits.

        ``least``: the fewest cores that count, 0 for actors, which need none unless they say so.
        """
        needs = options.needs(default_cpus=1.0 if least else 0.0)
        if needs.num_cpus and not self.admission.cpus:
            raise ResourcesUnavailable(
                f"{label} can never run here: it needs {needs.num_cpus:g} cores, and this executor was made with "
                "num_cpus=0. Give the call num_cpus=0, too, or give the executor cores."
            )
        if needs.num_cpus > self.admission.cpus:
            if not self._warned:
                self._warned = True
                warn(
                    f"{label} asks for {needs.num_cpus:g} cores, and there are {self.admission.cpus:g}: "
                    "it gets those.",
                )
            needs = replace(needs, num_cpus=self.admission.cpus)
        refused = self.admission.refusal(needs, workers)
        if refused:
            raise ResourcesUnavailable(
                f"{label} can never run here: it needs {refused}. Ask for less, or give the executor more "
                "(memory_limit=, num_gpus=) if the machine has it."
            )
        return replace(needs, num_cpus=max(least, needs.num_cpus))

    def threads(self, num_cpus: float | None) -> int:
        """Return how many threads native libraries may start in a worker."""
        if num_cpus is not None:
            return max(1, int(num_cpus))
        return max(1, self.cores // max(1, int(self.admission.cpus)))
