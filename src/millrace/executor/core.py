"""What an executor and its views share: the dispatcher, and how a call is made ready for it."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from millrace.core.warn import warn
from millrace.engines import machine
from millrace.engines.kept import Kept
from millrace.engines.local import LocalEngine
from millrace.errors import ArgumentError, MillraceError, NotPicklable, ResourcesUnavailable
from millrace.executor.admission import Admission, Needs
from millrace.executor.calls import Call
from millrace.executor.crew import ClusterCrew, Crew, LocalCrew
from millrace.executor.dispatch import Dispatcher, closed
from millrace.executor.futures import CallFuture
from millrace.executor.ground import Ground
from millrace.executor.repeats import Repeats
from millrace.executor.resources import CallOptions
from millrace.plan.logical import Function
from millrace.plan.pickling import why_not_picklable


class Core:
    """What an executor and its views share."""

    def __init__(
        self,
        engine: Ground,
        admission: Admission,
        crew: Crew,
        *,
        cores: int,
        counted: bool = False,
    ) -> None:
        """``cores``: what native libraries may use. ``counted``: cores are no mere advice, so more are refused."""
        notes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        def dropped(number: int, workers: set[int]) -> None:  # by the garbage collector, anywhere
            notes.put(partial(engine.forget, number, workers))

        self.cores = cores
        self.keeper = engine.keeper(dropped)
        self.admission = admission
        self.dispatcher = Dispatcher(engine, self.keeper, self.admission, crew, notes)
        self.repeats = Repeats()
        self.lock = threading.Lock()
        self.shut = False
        self._counted = counted
        self._clamped = False
        atexit.register(self._at_exit)

    @classmethod
    def local(cls, cpus: float, memory: int, devices: Sequence[str]) -> Core:
        """Return that of an executor on this machine."""
        engine = LocalEngine(devices=devices)
        crew = LocalCrew(engine, devices, max(1, int(cpus)), time.monotonic)
        return cls(engine, Admission(cpus, memory, len(devices)), crew, cores=machine.capacity().cpus)

    @classmethod
    def cluster(
        cls, cpus: float, memory: int, gpus: int, *, pool_timeout: float, extra: Mapping[str, Any]
    ) -> Core:
        """Return that of an executor on the cluster that this process is connected to."""
        from millrace.engines.ray.engine import RayEngine

        engine = RayEngine(pool_timeout=pool_timeout)
        admission = Admission(cpus, memory, gpus)
        crew = ClusterCrew(engine, lambda: admission.free, extra, time.monotonic)
        return cls(engine, admission, crew, cores=1, counted=True)

    def shutdown(self, *, cancel: bool = False, kill: bool = False) -> None:
        """Take no more calls."""
        with self.lock:
            self.shut = True
        self.dispatcher.shutdown(cancel=cancel, kill=kill)

    def join(self) -> None:
        """Wait until all is over."""
        if threading.current_thread() is not self.dispatcher.thread:
            self.dispatcher.thread.join()
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self.shutdown()
        self.join()

    # ------------------------------------------------------------ calls on their way

    def check_open(self) -> None:
        """Raise ``ExecutorClosed`` after the end."""
        if self.shut:
            raise closed()

    def call(
        self,
        label: str,
        what: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        retries: int | None,
        default_retries: int,
    ) -> Call:
        """Make a call ready to travel: ``what`` is a function, or the name of an actor's method."""
        kept, met = self.packed(label, (what, tuple(args), kwargs), once=True)
        self.repeats.look(label, kept.size, (what, *args, *kwargs.values()))
        future: CallFuture[Any] = CallFuture(label, self.keeper)
        return Call(label, kept, met, future, default_retries if retries is None else retries)

    def packed(self, label: str, value: Any, *, once: bool = False) -> tuple[Kept, list[Any]]:
        """Serialise a value; return it, and the references in it. ``NotPicklable`` names what cannot travel."""
        try:
            kept, met = self.keeper.put(value, once=once)
            for thing in met:
                owner = thing.owner if isinstance(thing, CallFuture) else thing.holder.owner
                if owner is not self.keeper:
                    raise ArgumentError(
                        f"{label} was given a {type(thing).__name__} of another executor, or of one that was "
                        "shut down: what is put or returned belongs to its own. Put the value to this one."
                    )
            return kept, met
        except MillraceError:
            raise
        except Exception as error:
            raise _not_picklable(label, value, error) from error

    def needs(self, label: str, options: CallOptions, *, least: float, workers: int = 1) -> Needs:
        """Return what each of ``workers`` calls or actors needs; refuse what can never be had, with the numbers.

        ``least``: the fewest cores that count, 0 for actors, which need none unless they say so.
        """
        needs = options.needs(default_cpus=1.0 if least else 0.0)
        if needs.num_cpus > self.admission.cpus and self._counted:
            raise ResourcesUnavailable(
                f"{label} can never run here: it needs {needs.num_cpus:g} cores, and this executor may use "
                f"{self.admission.cpus:g} of the cluster's. Ask for less, or give it more (workers=)."
            )
        if needs.num_cpus > self.admission.cpus:
            if not self._clamped:
                self._clamped = True
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
    """Stands where there is no function to blame."""


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
