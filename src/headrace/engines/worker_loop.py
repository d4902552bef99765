"""The loop of a worker: it hosts one object and calls its methods, one after another, as the driver asks.

How messages travel is up to a ``Transport``: a socket (``local.host``), or calls of an actor (``ray.host``).
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

from headrace.core.door import completed
from headrace.core.engine_ports import HostedParts, WorkerContext
from headrace.core.process import ending_forks, flush_streams
from headrace.errors import HeadraceError, NotPicklable

T = TypeVar("T")


class Transport(Protocol):
    """One worker's way to its driver."""

    def prepare(self, *args: Any) -> tuple[WorkerContext, Callable[[], Any]]:
        """Get ready to host an object; return its context, and what loads its factory.

        ``args`` are those of the message ``host``.
        """
        ...

    def send_result(self, number: int, value: Any) -> None:
        """Send what call ``number`` returned; closes an ``OutOfBandPickle``."""
        ...

    def send_error(self, number: int, error: BaseException) -> None:
        """Send what call ``number`` raised; it can be pickled."""
        ...

    def send_released(self) -> None:
        """Send which blocks nobody here reads any more, if there are any."""
        ...


class WorkerLoop:
    """Carries out what the transport puts into ``inbox``.

    ``("host", *args)``, once, makes the object; ``("call", number, method, args)`` calls it; ``("release_unused",)``
    reports released blocks; ``("end",)`` ends the loop. ``feed`` may be called from any thread, at any time.
    """

    def __init__(self, transport: Transport) -> None:
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._transport = transport
        self._hosted: Any = None
        self._early: list[tuple[Any, ...]] = []  # fed before the object was there
        self._feeding = threading.Lock()

    def run(self) -> None:
        """Do what is asked, until the end."""
        while (message := self.inbox.get())[0] != "end":
            self._carry_out(message)

    def _carry_out(self, message: tuple[Any, ...]) -> None:
        if message[0] == "host":
            self._host(*self._transport.prepare(*message[1:]))
        elif message[0] == "call":
            self._call(*message[1:])
        elif message[0] == "release_unused":
            self._transport.send_released()

    def feed(self, args: tuple[Any, ...]) -> None:
        """Pass something to the object at once, or as soon as it is there."""
        with self._feeding:
            if self._hosted is None:
                self._early.append(args)
            else:
                self._feed_hosted(args)

    def close(self) -> None:
        """Close the object, if it was made and can be closed."""
        if isinstance(self._hosted, FailedObject):
            return
        completed(self._hosted, HostedParts).close()

    # ------------------------------------------------------------ inside

    def _host(self, context: WorkerContext, load: Callable[[], Any]) -> None:
        context.preparing("importing what the plan's functions need")
        hosted: Any
        try:
            hosted = ending_forks(load_factory(load))(context)
        except BaseException as error:
            hosted = FailedObject(error)
        with self._feeding:
            self._hosted = hosted
            for args in self._early:
                self._feed_hosted(args)
            self._early.clear()
        context.preparing("")

    def _feed_hosted(self, args: tuple[Any, ...]) -> None:
        if not isinstance(self._hosted, FailedObject):
            self._hosted.feed(*args)

    def _call(self, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            result = ending_forks(getattr(self._hosted, method))(*args)
        except BaseException as error:
            self._answer_error(number, error)
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda future: self._answer_later(number, future))
        else:
            self._answer(number, result)

    def _answer_later(self, number: int, future: Future[Any]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._answer_error(number, error)
        else:
            self._answer(number, future.result())

    def _answer(self, number: int, value: Any) -> None:
        flush_streams()
        self._transport.send_released()
        self._transport.send_result(number, value)

    def _answer_error(self, number: int, error: BaseException) -> None:
        flush_streams()
        self._transport.send_released()
        self._transport.send_error(number, picklable_error(error))


def drained(items: deque[T]) -> list[T]:
    """Remove and return all items; somebody else may do so at the same time."""
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(items.popleft())
    return found


class FailedObject:
    """Stands for an object that could not be made: every use raises why."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def load_factory(load: Callable[[], Any]) -> Any:
    """Unpickle what the plan needs; raise ``NotPicklable`` if something of the user's cannot be unpickled here."""
    try:
        return load()
    except (HeadraceError, AttributeError, ImportError, MemoryError, OSError):
        raise
    except Exception as error:
        raise NotPicklable(
            "Something that the plan's functions use can be pickled, but not made again in a worker: "
            f"{type(error).__name__}: {error}. Make it inside the function, or in the constructor of a class, "
            "which runs in the worker; or use with_options(engine='inline')."
        ) from error


def picklable_error(error: BaseException) -> BaseException:
    """Return the error if it survives pickling, else one with its traceback as text."""
    try:
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error):
            return error
    except Exception:
        pass
    return RuntimeError("".join(traceback.format_exception(error)))
