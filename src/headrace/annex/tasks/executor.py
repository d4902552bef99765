"""``connect``, and the ``Executor`` that it returns."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as StandardExecutor
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.annex.tasks.actor_pool import ActorPool
from headrace.annex.tasks.actors import ActorHandle, actor_order
from headrace.annex.tasks.admission import CallOptions, Needs, check_known
from headrace.annex.tasks.calls import TaskOrder, pickled_once
from headrace.annex.tasks.core import Core
from headrace.annex.tasks.futures import CallFuture, fetched
from headrace.annex.tasks.hosting.task_host import TaskHost, call_each
from headrace.annex.tasks.hosting.worker_core import Faces
from headrace.core.arguments import known_arguments
from headrace.core.human import given_count, size
from headrace.core.process import hold_standard_streams
from headrace.engines.local import machine
from headrace.engines.local.spawner import Starting
from headrace.engines.references import Ref, collects_references, holder_of
from headrace.errors import ArgumentError, EngineError, NotOffered, NotPicklable, ResourcesUnavailable
from headrace.options import RunOptions
from headrace.plan.functions import callable_name
from headrace.plan.parameters import given_number

T = TypeVar("T")


class Executor(StandardExecutor):
    """Runs functions and actors in worker processes of this machine; made by ``connect``.

    It is a ``concurrent.futures.Executor``: ``as_completed`` and ``wait`` take its futures, and leaving ``with``
    waits for all calls. Calls are admitted in their order as far as cores, memory and GPUs allow.

    Functions, arguments and results are pickled by cloudpickle; big buffers (numpy, Arrow, pandas, PyTorch) are in
    shared memory and are not copied. A call whose worker dies is tried again, ``max_retries`` times (3), so a
    function may run more than once. What a function raises is raised by ``result()``, and not tried again.

    >>> import headrace as hr
    >>> from concurrent.futures import as_completed
    >>> with hr.connect(workers=2) as executor:
    ...     futures = [executor.submit(pow, 2, n) for n in range(4)]
    ...     sorted(future.result() for future in as_completed(futures))
    [1, 2, 4, 8]
    """

    def __init__(self, core: Core, options: CallOptions | None = None, whole: Executor | None = None) -> None:
        """Use ``connect``. ``whole``: the executor that this one is a view of."""
        self._core = core
        self._options = options or CallOptions()
        self._whole = whole
        if whole is None and not core.in_worker:
            weakref.finalize(self, core.shutdown).atexit = False

    # ------------------------------------------------------------ values

    def put(self, value: T) -> Ref[T]:
        """Store ``value`` where every worker can use it, once per machine; pass the ``Ref`` to calls.

        Big buffers (from 64 KiB) are in memory once for all workers. What exposes no buffers, such as trees of
        scikit-learn, each worker has for itself. The memory is free when the last ``Ref`` is collected.

        Raises ``NotPicklable`` if something in it cannot be pickled, ``ExecutorClosed`` after ``shutdown``.

        >>> import numpy as np, headrace as hr
        >>> with hr.connect(workers=1) as executor:
        ...     table = executor.put({"a": np.arange(5)})
        ...     executor.submit(lambda table: int(table["a"].sum()), table).result()
        10
        """
        self._core.check_open()
        stored, references = self._core.put("put", value)
        if references:
            stored.links = tuple(holder_of(thing) for thing in references)
        return Ref(stored)

    def get(self, what: Any, timeout: float | None = None) -> Any:
        """Return the value of a ``Ref``, the result of a future, or a list of them for a list of these.

        ``what`` is one of these, or a list. Raises what a call raised; ``TimedOut`` (a ``TimeoutError``) after
        ``timeout`` seconds in all; ``ArgumentError`` for anything else than references and futures.

        >>> import headrace as hr
        >>> with hr.connect(workers=1) as executor:
        ...     executor.get([executor.put("a"), executor.submit(str.upper, "b")])
        ['a', 'B']
        """
        return fetched(what, timeout)

    # ------------------------------------------------------------ calls

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> CallFuture[T]:
        """Call ``fn(*args, **kwargs)`` in a worker; return its future at once.

        A ``Ref`` or a future among the arguments is replaced by its value; the call waits for futures, and fails if
        one of them does. Inside lists, tuples and dicts they arrive as ``Ref``, which has ``get()``.

        Raises ``NotPicklable`` if something cannot be pickled, ``ResourcesUnavailable`` if the call needs more than
        there is, ``ExecutorClosed`` after ``shutdown``. The future raises what ``fn`` raised; ``CallLost`` if it
        ended its worker more than ``max_retries`` times.

        >>> import headrace as hr
        >>> with hr.connect(workers=2) as executor:
        ...     half = executor.submit(lambda x: x / 2, 10)
        ...     executor.submit(lambda x: x + 1, half).result()
        6.0
        """
        _check_callable("submit", fn)
        future: CallFuture[T] = self._submit(fn, args, kwargs, callable_name(fn))
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **unknown: Any,
    ) -> Iterator[T]:
        """Yield ``fn(*items)`` for the items of the iterables, taken together, in their order.

        All calls are submitted at once, ``chunksize`` items in each. Raises what a call raised, and ``TimeoutError``
        if a result is not there ``timeout`` seconds after ``map`` was called; when it, or an error, ends the
        iteration, calls that have not begun are cancelled. Any ``unknown`` argument is an ``UnknownArgument``.

        >>> import headrace as hr
        >>> with hr.connect(workers=2) as executor:
        ...     list(executor.map(pow, [2, 3, 4], [5, 2, 3], chunksize=2))
        [32, 9, 64]
        """
        check_known("map", unknown, ("timeout", "chunksize"))
        chunksize = given_count("chunksize", chunksize, 1)
        until = None if timeout is None else time.monotonic() + timeout
        items = zip(*iterables, strict=False)
        label = callable_name(fn)
        _check_callable("map", fn)
        fn = pickled_once(fn)
        futures: list[CallFuture[Any]] = []
        if chunksize == 1:
            futures += (self._submit(fn, item, {}, label) for item in items)
        else:
            while chunk := list(itertools.islice(items, chunksize)):
                futures.append(self._submit(call_each, (fn, chunk), {}, label))
        return _in_order(futures, until, single=chunksize == 1)

    def options(self, **options: Any) -> Executor:
        """Return a view of this executor whose calls need, or may do, something else.

        Parameters
        ----------
        num_cpus
            Cores that a call takes, 1 by default; parts are possible. More than there are count as all there are.
        num_gpus
            Devices that a call has for itself; it sees those, and no others. 0.5: half of one.
        memory
            Bytes that a call takes: a number, or text such as ``"2GiB"``. Calls wait until there is as much left of
            the executor's ``memory_limit``.
        max_retries
            How often a call is tried again whose worker died; 3 by default, -1: without end.
        num_returns
            How many results a call has: ``submit`` returns a list of as many futures; the function, a tuple or list.
            ``"streaming"``: it is a generator, and ``submit`` returns an iterator of the futures of what it yields.

        Raises ``UnknownArgument`` for other options, ``ArgumentError`` for a value that makes no sense. What there
        will never be is refused by ``submit``.

        >>> import headrace as hr
        >>> with hr.connect(workers=2, memory_limit="4GiB") as executor:
        ...     executor.options(memory="3GiB", max_retries=0).submit(sum, [1, 2]).result()
        3
        """
        return Executor(self._core, self._options.updated("options", options), self._whole or self)

    # ------------------------------------------------------------ actors

    def actor(
        self,
        cls: Callable[..., Any],
        /,
        *args: Any,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int = 0,
        max_restarts: int = 0,
        max_concurrency: int | None = None,
        **kwargs: Any,
    ) -> ActorHandle:
        """Make ``cls(*args, **kwargs)`` in a worker process of its own; return a handle with its methods.

        ``actor.method(…)`` returns a future; calls run one after another, in their order. ``cls`` may be a function
        that returns the object. A ``Ref`` or future among the arguments is replaced by its value.

        Parameters
        ----------
        num_cpus
            Cores that calls of functions do without as long as the actor lives; none by default.
        num_gpus, memory
            Devices and bytes that it has as long as it lives; it waits until they are free.
        max_restarts
            How often the object is made anew where its process died, without what it had become; 0 by default, -1:
            as often as need be. Once it is not, every call raises ``ActorDied``.
        max_retries
            How often a call is tried again on an object that was made anew.
        max_concurrency
            How many methods may run at the same time: in threads, or, if the class has ``async`` methods, in one
            event loop, 1,000 by default. Else one by default.

        Raises ``ResourcesUnavailable`` if it needs more than there is, ``UnknownArgument`` if ``cls`` does not take
        these arguments. If the constructor raises, every call raises that.

        >>> import headrace as hr
        >>> class Counter:
        ...     total = 0
        ...     def add(self, number):
        ...         self.total += number
        ...         return self.total
        >>> with hr.connect(workers=1) as executor:
        ...     counter = executor.actor(Counter)
        ...     executor.get([counter.add(1), counter.add(10)])
        [1, 11]
        """
        resources = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": memory}
        said = {"retries": max_retries, "restarts": max_restarts, "concurrency": max_concurrency}
        order = actor_order(self, cls, args, kwargs, resources, **said)
        return self._core.start_actor(self, cls, args, kwargs, order)

    def actor_pool(
        self,
        cls: Callable[..., Any],
        /,
        *args: Any,
        size: int = 4,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int = 1,
        **kwargs: Any,
    ) -> ActorPool:
        """Make ``cls(*args, **kwargs)`` in ``size`` workers, and hand them items of work: see ``ActorPool``.

        The arguments are serialised once for all. ``num_cpus``, ``num_gpus`` and ``memory`` (bytes, or text such as
        ``"2GiB"``) are for each of them. An item whose actor died is tried again, on the one that takes its place,
        ``max_retries`` times; then its result is ``ActorDied``.

        Raises ``ResourcesUnavailable`` if there will never be room for ``size`` of them.

        >>> import numpy as np, headrace as hr
        >>> class Model:
        ...     def __init__(self, weights):
        ...         self.weights = weights
        ...     def predict(self, rows):
        ...         return (rows @ self.weights).tolist()
        >>> with hr.connect(workers=2) as executor:
        ...     pool = executor.actor_pool(Model, executor.put(np.array([1.0, 2.0])), size=2)
        ...     pool.submit(lambda actor, rows: actor.predict(rows), np.eye(2))
        ...     pool.get_next()
        [1.0, 2.0]
        """
        size = given_count("size", size, 1)
        resources = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": memory}
        order = actor_order(self, cls, args, kwargs, resources, retries=max_retries, restarts=-1)
        if self._core.in_worker:
            raise NotOffered("A call cannot make an actor_pool: make its actors with executor.actor.")
        return ActorPool(self._core.start_actors(self, cls, args, kwargs, order, size))

    # ------------------------------------------------------------ resources

    @property
    def limits(self) -> Needs:
        """What there is in all: cores, devices, bytes of memory."""
        admission = self._core.admission
        return Needs(admission.cpus, admission.gpus, admission.memory, tuple(admission.resources.items()))

    @property
    def available(self) -> Needs:
        """What of it no call and no actor has now."""
        asked: Future[Needs] = Future()
        self._core.dispatcher.post(lambda: asked.set_result(self._core.admission.free))
        return asked.result()

    # ------------------------------------------------------------ the end

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. With ``wait``, return when all are done and no process, thread or memory is left.

        ``cancel_futures``: calls that have not begun are cancelled. Without ``wait``, the program still does not end
        before all calls are done. Afterwards ``submit`` and ``put`` raise ``ExecutorClosed``, a ``RuntimeError``.
        """
        if self._core.in_worker:
            return  # it is the program's
        self._core.shutdown(cancel=cancel_futures)
        if wait:
            self._core.join()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._core.in_worker:
            return
        hurried = error is not None and not isinstance(error, Exception)  # Ctrl-C
        self._core.shutdown(cancel=hurried, kill=hurried)
        self._core.join()

    def __repr__(self) -> str:
        if self._core.in_worker:
            return "<Executor: in a worker, by the executor of its driver>"
        admission = self._core.admission
        gpus = f", gpus {admission.gpus}" if admission.gpus else ""
        state = "shut down" if self._core.is_shut else "open"
        return f"<Executor: cores {admission.cpus:g}, memory {size(admission.memory)}{gpus}, state {state}>"

    def __reduce__(self) -> Any:
        if collects_references():
            return _executor_here, (self._options,)
        raise NotPicklable(
            "An executor can be used only by the program that made it, and by calls that get it as an argument."
        )

    # ------------------------------------------------------------ private

    def _submit(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], label: str) -> Any:
        self._core.check_open()
        return self._core.submit(TaskOrder(label, self._options, self._options.num_returns), fn, args, kwargs)


@known_arguments
def connect(
    engine: str | None = None,
    *,
    workers: int | None = None,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    memory_limit: int | str | None = None,
) -> Executor:
    """Return an executor, for those who decide themselves what is computed where and in which pieces.

    Parameters
    ----------
    engine
        ``"local"``, the default: workers are processes of this machine. Nothing else is offered.
    workers, num_cpus
        How many cores there are for calls, each of which takes one unless it says otherwise; two names for the same.
        Default: what this process may use.
        ``num_cpus=0``: only calls that say ``num_cpus=0``, and actors that take no core, run at all.
    num_gpus
        How many devices there are for calls; default: all that this process sees.
    memory_limit
        Bytes, or text such as ``"8GiB"``: what calls and actors may declare together (``memory=``). Default: 80 % of
        the machine's or container's memory. What is ``put`` is not counted.

    Raises
    ------
    ResourcesUnavailable
        There are fewer devices than ``num_gpus``.

    In a call of an executor, it returns that executor, whatever the arguments: a call may make calls,
    and wait for them. Leaving its ``with`` waits for nothing. ``submit`` returns futures with ``result()`` there,
    which ``executor.get`` and ``executor.wait`` take, too.

    Examples
    --------
    >>> import numpy as np, headrace as hr
    >>> def score(weights, rows):
    ...     return rows @ weights
    >>> with hr.connect(workers=2) as executor:
    ...     weights = executor.put(np.ones(3))
    ...     [score.tolist() for score in executor.map(score, [weights] * 2, [np.eye(3), np.zeros((1, 3))])]
    [[1.0, 1.0, 1.0], [0.0]]
    """
    if TaskHost.current is not None:
        return TaskHost.current.core.executor()  # type: ignore[no-any-return]
    if engine not in (None, "local"):
        raise NotOffered(
            f"connect({engine!r}): an executor's workers are processes of this machine. On a cluster, Ray's own "
            "tasks and actors do the same; a Dataset runs there with engine=hr.Ray(…)."
        )
    return opened(given_cores(workers, num_cpus), _devices(num_gpus), memory_limit)


def opened(
    cores: float | None,
    devices: tuple[str, ...],
    memory_limit: int | str | None,
    resources: Mapping[str, float] | None = None,
) -> Executor:
    """Return an executor with these ``devices``, and with named ``resources``, which are only counted."""
    hold_standard_streams()
    options = RunOptions.from_environment().updated({"memory_limit": memory_limit, "engine": "local"})
    capacity = machine.capacity()
    cpus = (options.workers or max(1, capacity.cpus)) if cores is None else cores
    starting = Starting(options.worker_start, eager=cpus > 1, keep=options.keep_template or 0.0)
    return Executor(Core(cpus, options.memory_limit or capacity.memory, devices, starting, resources))


def given_cores(workers: int | None, num_cpus: float | None) -> float | None:
    """Return how many cores were asked for, checked; None if none were."""
    if workers is not None and num_cpus is not None and workers != num_cpus:
        raise ArgumentError(
            f"workers={workers!r} and num_cpus={num_cpus!r} are two names for the same: give one."
        )
    name, given = ("workers", workers) if workers is not None else ("num_cpus", num_cpus)
    cores = given_number(name, given)
    if cores is None:
        return None
    if workers is not None and cores != int(cores):
        raise ArgumentError(f"workers={workers!r}: it takes a whole number; num_cpus= takes parts of cores.")
    if not cores and workers is not None:
        raise ArgumentError("workers=0: it takes a number above zero.")
    return cores


def _devices(wanted: Any) -> tuple[str, ...]:
    there = machine.devices()
    if wanted is None:
        return there
    if given_count("num_gpus", wanted) > len(there):
        raise ResourcesUnavailable(
            f"num_gpus={wanted}: this machine has {len(there)} that this process may use."
        )
    return there[:wanted]


Faces.executor, Faces.handle = Executor, ActorHandle


def _check_callable(method: str, fn: Any) -> None:
    if not callable(fn):
        raise ArgumentError(f"{method}({fn!r}): it takes a function, or anything else that can be called.")


def _executor_here(options: CallOptions) -> Executor:
    host = TaskHost.current
    if host is None:
        raise EngineError("An executor that was passed to a call can be used only in its own workers.")
    return Executor(host.core, options)  # type: ignore[arg-type]


def _in_order(futures: list[CallFuture[Any]], until: float | None, *, single: bool) -> Iterator[Any]:
    futures.reverse()
    try:
        while futures:
            left = None if until is None else max(0.0, until - time.monotonic())
            result = futures.pop().result(left)
            if single:
                yield result
            else:
                yield from result
    finally:
        for future in futures:
            future.cancel()
