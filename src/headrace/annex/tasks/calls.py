"""One call on its way: what it needs, what it waits for, and who waits for it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.annex.tasks.admission import CallOptions, Needs
from headrace.annex.tasks.futures import CallFuture, Pieces, ResultStream
from headrace.engines.references import collecting_references, holder_of
from headrace.errors import CallCancelled, CallLost, EngineError, ExecutorClosed

if TYPE_CHECKING:
    from headrace.engines.local.pool import LocalPool
    from headrace.engines.object_store import StoredObject


Returns = int | str | None  # how many results; "stream": as many as come; None: one, as it is


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """What is said about a call, beside what is called: it travels from workers to the driver.

    ``actor``: the number of the actor whose method it is.
    """

    label: str
    options: CallOptions = field(default_factory=CallOptions)
    returns: Returns = None
    actor: int = -1


@dataclass(frozen=True, slots=True)
class ActorOrder:
    """What is said about an actor, beside what it is made of."""

    label: str
    options: CallOptions
    retries: int = 0
    restarts: int = 0
    concurrency: int | None = None
    name: str | None = None
    get_if_exists: bool = False
    detached: bool = False
    methods: dict[str, CallOptions] | None = None
    is_async: bool = False


@dataclass(eq=False, slots=True)
class TaskCall:
    """A call of a function, of an actor's constructor, or of its method.

    ``references`` are those and the futures in its arguments. ``direct``: the places in ``references`` of arguments
    by themselves: it waits for these. ``life`` is the ``ActorLife`` of an actor, and ``kind`` the ``WorkerKind`` that
    a function needs.
    """

    label: str
    stored: StoredObject
    references: Sequence[Any]
    future: CallFuture[Any]
    max_retries: int = 0
    direct: Sequence[int] = ()
    pieces: Pieces | None = None  # of several results, or of a stream
    life: Any = None
    method: str = "run"  # of what the worker hosts
    said: tuple[Any, ...] = ()  # its arguments
    needs: Needs = field(default_factory=Needs)
    threads: int = 1
    kind: Any = None
    worker: LocalPool | None = None  # that runs it
    process: int = -1  # the number of its process
    deaths: int = 0
    begun: bool = False
    requested: bool = False  # it waits for admission
    pending: int = 0  # how many futures it still waits for
    stopping: bool = False  # it is being cancelled
    depth: int = 0  # how many calls have made one another, up to this one
    children: list[TaskCall] | None = None  # calls that it has made
    order: int = 0  # of an actor's calls

    def wait_for_arguments(self, then: Callable[[], None]) -> None:
        """Count the futures that it waits for and that are not done, and have ``then`` called as each is."""
        futures = [each for i in self.direct if isinstance(each := self.references[i], CallFuture)]
        self.pending = len(futures)
        for future in futures:
            future.add_done_callback(lambda _: then())

    def link_arguments(self) -> None:
        """All of these are done: link the stored call to their results. Raises what one of them raised."""
        if self.references:
            direct = set(self.direct)
            self.stored.links = tuple(
                _stored(each) if i in direct else holder_of(each) for i, each in enumerate(self.references)
            )

    @property
    def may_be_tried_again(self) -> bool:
        """Whether it may be sent to another worker after one that it ended."""
        return not self.stopping and (self.max_retries < 0 or self.deaths <= self.max_retries)

    def begin(self) -> bool:
        """Mark it as running; False if it was cancelled."""
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        return self.begun

    def succeed(self, stored: StoredObject) -> None:
        """It returned something."""
        self.release()
        if self.pieces is not None:
            self.pieces.end(None)
        with suppress(InvalidStateError):
            self.future.set_result(stored)

    def fail(self, error: BaseException) -> None:
        """It raised something, or cannot be carried out."""
        self.release()
        if self.pieces is not None:
            self.pieces.end(error)
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def release(self) -> None:
        """It is over: drop what it refers to, though the user may have its future for long."""
        self.references = ()
        self.future.drop_callback()
        self.children = None


@dataclass(eq=False, slots=True)
class Wait:
    """What somebody in a worker waits for. ``call``: that of a function, whose cores others may have meanwhile."""

    token: int
    pool: LocalPool
    worker: int
    left: int
    fetch: bool
    call: TaskCall | None = None
    futures: list[Any] = field(default_factory=list)  # kept alive
    done: list[int] = field(default_factory=list)
    over: bool = False


def waited_for(value: Any, references: Sequence[Any]) -> tuple[int, ...]:
    """Return the places in ``references`` of those that are arguments by themselves, of ``(what, args, kwargs)``."""
    if not references:
        return ()
    direct = {id(each) for each in (*value[1], *value[2].values())}
    return tuple(i for i, each in enumerate(references) if id(each) in direct)


def results_of(call: TaskCall) -> Any:
    """Return what the user gets for a call: its future, several futures, or a stream of them."""
    if call.pieces is None:
        return call.future
    return ResultStream(call.pieces) if call.pieces.count is None else call.pieces.futures()


def _stored(argument: Any) -> Any:
    if not isinstance(argument, CallFuture):
        return holder_of(argument)
    if argument.cancelled():
        raise CancelledError(f"{argument!r}, on which it waited, was cancelled")
    error = argument.exception(0)
    if error is not None:
        raise error
    return argument.stored


# ---------------------------------------------------------------- how calls end that do not end by themselves


def closed() -> ExecutorClosed:
    """Return the error for calls after the end."""
    return ExecutorClosed("The executor is shut down: it cannot take calls any more.")


def only_here() -> Callable[[], None]:
    """Return what raises ``ExecutorClosed`` in a fork of this process: what carries out calls is not there."""
    here = os.getpid()

    def check() -> None:
        if os.getpid() != here:
            raise ExecutorClosed(
                f"This process is a fork of process {here}, which owns the executor, so a call from here would never "
                "run. Connect in this process: hr.connect(workers=...), or ray.init() after ray.shutdown()."
            )

    return check


def cancelled(call: TaskCall) -> CallCancelled:
    """Return the error of a call that was cancelled."""
    return CallCancelled(f"{call.label} was cancelled.")


def lost(call: TaskCall, error: BaseException) -> CallLost:
    """Return the error for a call that ended every worker that tried it."""
    times = "once" if call.deaths == 1 else f"{call.deaths} times"
    return CallLost(
        f"{call.label} ended its worker {times}: {error}. It is not tried again (max_retries={call.max_retries})."
    )


def defect(error: BaseException) -> EngineError:
    """Return the error for calls after the dispatcher's thread has failed."""
    return EngineError(
        f"The thread of the executor failed: {type(error).__name__}: {error}. This is a bug in Headrace."
    )


class PickledOnce:
    """Stands for a function in the pickles of many calls: unpickled, it is the function as it was at first."""

    __slots__ = ("_pickled",)

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return pickle.loads, (self._pickled,)


def pickled_once(function: Any) -> Any:
    """Return what stands for a function in calls; the function itself where each call must pickle it.

    That is where it holds references or big arrays, or cannot be pickled, which the call itself reports.
    """
    from headrace.engines.out_of_band_pickle import pickle_apart

    try:
        with collecting_references() as references:
            pickled, buffers = pickle_apart(function)
    except Exception:
        return function
    return function if references or buffers else PickledOnce(pickled)
