"""What an executor and its views share: the dispatcher, and how calls are prepared for it."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.core.warn import warn
from headrace.engines.local import machine
from headrace.engines.local.engine import LocalEngine
from headrace.engines.object_store import StoredObject
from headrace.errors import ArgumentError, HeadraceError, NotPicklable, ResourcesUnavailable
from headrace.plan.functions import Function
from headrace.plan.pickling import why_not_picklable
from headrace.tasks.admission import Admission, Needs
from headrace.tasks.calls import TaskCall
from headrace.tasks.dispatcher import Dispatcher, closed
from headrace.tasks.executor_engine import ExecutorEngine
from headrace.tasks.futures import CallFuture
from headrace.tasks.repeats import Repeats
from headrace.tasks.resources import CallOptions
from headrace.tasks.workers import ClusterWorkers, ExecutorWorkers, LocalWorkers


class Core:
    """What an executor and its views share."""

    def __init__(
        self,
        engine: ExecutorEngine,
        admission: Admission,
        workers: ExecutorWorkers,
        *,
        cores: int,
        cores_are_hard: bool = False,
    ) -> None:
        """``cores``: what native libraries may use. ``cores_are_hard``: calls that need more than there are raise."""
        actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        # Called by the garbage collector, in any thread.
        def on_release(number: int, workers: set[int]) -> None:
            actions.put(partial(engine.forget, number, workers))

        self.cores = cores
        self.store = engine.object_store(on_release)
        self.admission = admission
        self.dispatcher = Dispatcher(engine, self.store, self.admission, workers, actions)
        self.repeats = Repeats()
        self.lock = threading.Lock()
        self.is_shut = False
        self._cores_are_hard = cores_are_hard
        self._warned = False
        atexit.register(self._at_exit)

    @classmethod
    def local(cls, cpus: float, memory: int, devices: Sequence[str]) -> Core:
        """Return the core of an executor on this machine."""
        engine = LocalEngine(devices=devices)
        workers = LocalWorkers(engine, devices, max(1, int(cpus)), time.monotonic)
        return cls(engine, Admission(cpus, memory, len(devices)), workers, cores=machine.capacity().cpus)

    @classmethod
    def cluster(
        cls, cpus: float, memory: int, gpus: int, *, pool_timeout: float, extra: Mapping[str, Any]
    ) -> Core:
        """Return the core of an executor on the cluster that this process is connected to."""
        from headrace.engines.ray.engine import RayEngine

        engine = RayEngine(pool_timeout=pool_timeout)
        admission = Admission(cpus, memory, gpus)
        workers = ClusterWorkers(engine, lambda: admission.free, extra, time.monotonic)
        return cls(engine, admission, workers, cores=1, cores_are_hard=True)

    def shutdown(self, *, cancel: bool = False, kill: bool = False) -> None:
        """Take no more calls."""
        with self.lock:
            self.is_shut = True
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

    def call(
        self,
        label: str,
        what: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        retries: int | None,
        default_retries: int,
    ) -> TaskCall:
        """Serialise a call: ``what`` is a function, or the name of an actor's method."""
        stored, references = self.put(label, (what, tuple(args), kwargs), once=True)
        self.repeats.check(label, stored.size, (what, *args, *kwargs.values()))
        future: CallFuture[Any] = CallFuture(label, self.store)
        return TaskCall(label, stored, references, future, default_retries if retries is None else retries)

    def put(self, label: str, value: Any, *, once: bool = False) -> tuple[StoredObject, list[Any]]:
        """Store a value; return it, and the references in it. ``NotPicklable`` names what cannot be pickled."""
        try:
            stored, references = self.store.put(value, once=once)
            for reference in references:
                store = reference.store if isinstance(reference, CallFuture) else reference.holder.store
                if store is not self.store:
                    raise ArgumentError(
                        f"{label} was given a {type(reference).__name__} of another executor, or of one that was "
                        "shut down: what is put or returned belongs to its own. Put the value to this one."
                    )
            return stored, references
        except HeadraceError:
            raise
        except Exception as error:
            raise _not_picklable(label, value, error) from error

    def needs(self, label: str, options: CallOptions, *, least: float, workers: int = 1) -> Needs:
        """Return what each of ``workers`` calls or actors needs; raise ``ResourcesUnavailable`` if it never fits.

        ``least``: the fewest cores that count, 0 for actors, which need none unless they say so.
        """
        needs = options.needs(default_cpus=1.0 if least else 0.0)
        if needs.num_cpus > self.admission.cpus and self._cores_are_hard:
            raise ResourcesUnavailable(
                f"{label} can never run here: it needs {needs.num_cpus:g} cores, and this executor may use "
                f"{self.admission.cpus:g} of the cluster's. Ask for less, or give it more (workers=)."
            )
        if needs.num_cpus > self.admission.cpus:
            if not self._warned:
                self._warned = True
                warn(
                    f"{label} asks for {needs.num_cpus:g} cores, and there are {self.admission.cpus:g}: "
                    "it gets those.",
                )
            needs = Needs(self.admission.cpus, needs.num_gpus, needs.memory)
        refused = self.admission.refusal(needs, workers)
        if refused:
            raise ResourcesUnavailable(
                f"{label} can never run here: it needs {refused}. Ask for less, or give the executor more "
                "(memory_limit=, num_gpus=) if the machine has it."
            )
        return Needs(max(least, needs.num_cpus), needs.num_gpus, needs.memory)

    def threads(self, num_cpus: float | None, workers: int | None = None) -> int:
        """Return how many threads native libraries may start in a worker."""
        if num_cpus is not None:
            return max(1, int(num_cpus))
        return max(1, self.cores // (workers or max(1, int(self.admission.cpus))))


def _nothing() -> None:
    """Stands for the function where only data is to blame."""


def _not_picklable(label: str, value: Any, error: Exception) -> NotPicklable:
    import cloudpickle

    what, args, kwargs = (None, (value,), {}) if label == "put" else value
    function = Function(what if callable(what) else _nothing, args=args, kwargs=kwargs)
    try:
        why = why_not_picklable(function, cloudpickle.dumps)
    except Exception:
        why = f"{type(error).__name__}: {error}"
    return NotPicklable(
        f"{label} cannot travel to a worker process: {why}. Make such a thing inside the function, or in the "
        "constructor of an actor, which runs in the worker."
    )
