"""In a worker: what stands for the executor, so that calls can make calls of their own, and wait for them.

Each value, future and actor has a number, which is the same in the driver and in all workers. What a worker makes, it
numbers itself, so that it need not wait for the driver. The driver keeps what a worker holds references to, until
that says that it dropped them, or ends.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

import msgspec

from headrace.annex.tasks.calls import TaskOrder, waited_for
from headrace.annex.tasks.futures import ResultStream
from headrace.core import pickles
from headrace.core.engine_ports import WorkerContext
from headrace.core.failures import name_of, user_traceback, words
from headrace.engines.references import Ref, collecting_references, holder_of, taken_restored
from headrace.engines.worker_loop import drained
from headrace.errors import HeadraceError, NotPicklable, RemoteTraceback, StepError, TimedOut
from headrace.plan.functions import Function
from headrace.plan.pickling import why_not_picklable

# ---------------------------------------------------------------- errors on their way

IN_CONSTRUCTOR = "__headrace_in_constructor__"  # set on what an actor's constructor raised


class CallFailed(Exception):
    """Carries a user's exception, pickled by cloudpickle, which knows classes of the main module."""


def packed_error(label: str, error: BaseException) -> bytes:
    """Pickle what a call raised, with its traceback as text."""
    import cloudpickle

    text = _traceback(error)
    if isinstance(error, Exception):
        try:
            data: bytes = cloudpickle.dumps((error, text))
            again, _ = cloudpickle.loads(data)
            if type(again) is type(error):
                return data
        except Exception:
            pass
    substitute = StepError(f"{label} raised {name_of(error)}: {words(error)}")
    return cloudpickle.dumps((substitute, text))  # type: ignore[no-any-return]


def restored_error(error: BaseException | bytes) -> BaseException:
    """Unpickle the user's exception, with its traceback in the worker as the cause."""
    if isinstance(error, CallFailed):
        error = error.args[0]
    if not isinstance(error, bytes):
        return error
    error_again, text = pickles.loads(error)
    error_again.__cause__ = RemoteTraceback(text)
    return error_again  # type: ignore[no-any-return]


def not_picklable(label: str, value: Any, error: Exception) -> NotPicklable:
    """Return the error that names what of a call, or of what is put, cannot be pickled."""
    import cloudpickle

    what, args, kwargs = (None, (value,), {}) if label == "put" else value[:3]
    function = Function(what if callable(what) else lambda: None, args=args, kwargs=kwargs)
    try:
        why = why_not_picklable(function, cloudpickle.dumps)
    except Exception:
        why = f"{type(error).__name__}: {error}"
    return NotPicklable(
        f"{label} cannot travel to a worker process: {why}. Make such a thing inside the function, or in the "
        "constructor of an actor, which runs in the worker."
    )


def _traceback(error: BaseException) -> str:
    if isinstance(error.__cause__, RemoteTraceback) and error.__traceback__ is None:
        return str(error.__cause__)
    if isinstance(error, HeadraceError) and error.__cause__ is None:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return user_traceback(error)


current_call: ContextVar[int] = ContextVar("headrace_call", default=-1)


class Faces:
    """What users see of executors and actors; their modules, which know this one, say what it is."""

    executor: Callable[..., Any]
    handle: Callable[..., Any]


class Interrupted(BaseException):
    """Raised in the midst of a call that was cancelled."""


class InnerFuture(Ref[Any]):
    """In a worker: the result of a call, or of whatever else is not done yet."""

    __slots__ = ()
    _holder: Pending

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result, and return it; see ``CallFuture``."""
        self._holder.wait_for([self._holder], timeout)
        return self.get()

    def future(self) -> Future[Any]:
        """Return a plain future of the result; ``inner`` is this one."""
        future = super().future()
        future.inner = self  # type: ignore[attr-defined]
        return future

    def done(self) -> bool:
        """Return whether the call is over."""
        return bool(self._holder.core.wait([self], 1, 0)[0])

    def cancel(self, force: bool = False, recursive: bool = True) -> bool:
        """Cancel the call."""
        self._holder.core.note(("cancel", self._holder.number, force, recursive))
        return True


class Pending:
    """Stands in this worker for what the driver has under a number: a future, a value not sent yet, an actor."""

    __slots__ = ("__weakref__", "_came", "_error", "core", "number")
    alive = True  # as far as an actor's handle knows here

    def __init__(self, core: WorkerCore, number: int) -> None:
        self.core = core
        self.number = number
        self._came: Any = None  # the value as it was sent
        self._error: bytes | BaseException | None = None

    @property
    def is_here(self) -> bool:
        """Whether nobody has to wait for it any more."""
        return self._came is not None or self._error is not None

    def settle(self, came: Any, error: Any) -> None:
        """It is done."""
        self._came, self._error = came, error

    def value(self) -> Any:
        """Wait for the value, and return it; raise what the call raised."""
        self.wait_for([self], None)
        if self._error is not None:
            raise restored_error(self._error)
        return self._came.value()

    def wait_for(self, holders: Sequence[Any], timeout: float | None) -> None:
        """Wait for these and have their values sent; raise ``TimedOut``."""
        missing = {each.number: each for each in holders if isinstance(each, Pending) and not each.is_here}
        if missing and self.core.wait_for(missing, len(missing), timeout, fetch=True) is None:
            raise TimedOut(f"{len(missing)} of {len(holders)} results were not done within {timeout:g} s.")

    def when_done(self, then: Callable[[], None]) -> None:
        """Have ``then`` called when the value is here, maybe in another thread."""
        if self.is_here:
            then()
        else:
            self.core.tell({self.number: self}, then)

    def reference(self, *described: Any) -> Any:
        """Return a future, or the handle of an actor that is ``described``."""
        if described:
            return Faces.handle(self.core.executor(), self, *described)
        return InnerFuture(self)


class InnerPieces:
    """In a worker: the results of a stream, one after the other; see ``Pieces``."""

    def __init__(self, holder: Pending) -> None:
        self.call = InnerFuture(holder)
        self._holder = holder
        self._asked: tuple[Pending, _Waiting] | None = (
            None  # the driver gives each result once, so it is asked once
        )
        self._found: list[Any] = []

    def wait(self, index: int, timeout: float | None) -> bool:
        """Wait until it is known whether there is a result ``index``; say so."""
        if not self._found:
            self._asked = self._asked or self._holder.core.ask_next(self._holder, index)
            result, waiting = self._asked
            if not waiting.event.wait(timeout):
                raise TimedOut(f"No result came within {timeout:g} s.")
            self._asked = None
            self._found.append(InnerFuture(result) if waiting.done else None)
        return self._found[0] is not None

    def take(self, index: int) -> Any:
        """Return its future."""
        return self._found.pop()


class _Waiting:
    def __init__(self, holders: dict[int, Any], then: Callable[[], None] | None = None) -> None:
        self.holders = holders
        self.done: list[int] | None = None
        self.event = threading.Event()
        self.then = then


class WorkerCore:
    """Has the methods of ``Core`` that executors and handles of actors use, by way of the driver."""

    in_worker = True
    is_shut = False

    def __init__(self, context: WorkerContext) -> None:
        assert context.line is not None
        self.line = context.line
        self._notify = context.notify
        self._numbers = itertools.count((context.worker + 1) << 40)
        self._tokens = itertools.count()
        self._waits: dict[int, _Waiting] = {}
        self._dropped: deque[int] = deque()
        self._executor: Any = None
        self.sending = 0
        self.cancelled: Callable[[], None] = _nothing  # raises if the call that asks was cancelled
        self.line.stand_in(self._pending)

    def executor(self) -> Any:
        """Return the executor that code in this worker uses."""
        if self._executor is None:
            self._executor = Faces.executor(self)
        return self._executor

    def check_open(self) -> None:
        """There is a driver as long as there is a worker."""

    # ------------------------------------------------------------ to the driver

    def note(self, message: tuple[Any, ...]) -> None:
        """Send the driver a message, after what it has to know of references."""
        self.settle()
        self._tell(message)

    def settle(self) -> None:
        """Tell the driver which references that came with calls are still held, and which are not any more."""
        held = taken_restored()
        if held:
            numbers = tuple(holder_of(reference).number for reference in held)
            for reference, number in zip(held, numbers, strict=True):
                self._drop_with(reference, number)
            self._tell(("hold", numbers))
            del held, reference
        if dropped := drained(self._dropped):
            self._tell(("drop", tuple(dropped)))

    def put(self, label: str, value: Any) -> tuple[Any, list[Any]]:
        """Store a value with the driver."""
        holder = self._new()
        self._send(label, value, ("put", holder.number), arguments=False)
        return holder, []

    def submit(
        self, order: TaskOrder, what: Any, args: Sequence[Any], kwargs: dict[str, Any], life: Any = None
    ) -> Any:
        """See ``Core.submit``."""
        several = isinstance(order.returns, int)
        holders = [self._new() for _ in range(order.returns if several else 1)]  # type: ignore[arg-type]
        own = self._new() if several else holders[0]
        numbers = (own.number, *(holder.number for holder in holders if several))
        self._send(
            order.label,
            (what, tuple(args), kwargs, order.options.strict),
            ("submit", numbers, current_call.get(), order),
        )
        if several:
            return [InnerFuture(holder) for holder in holders]
        return ResultStream(InnerPieces(own)) if order.returns == "stream" else InnerFuture(own)

    def start_actor(self, executor: Any, cls: Any, args: Any, kwargs: Any, order: Any) -> Any:
        """Have an actor made; return its handle."""
        if order.name is not None and order.get_if_exists:
            found = self.named_actor(order.name)
            if found is not None:
                return found
        holder = self._new()
        self._send(
            order.label, (cls, tuple(args), kwargs, order.options.strict), ("actor", holder.number, order)
        )
        if order.name is not None:
            try:
                self._ask("named", order.name, holder.number)
            except HeadraceError:
                found = self.named_actor(order.name) if order.get_if_exists else None
                if found is None:
                    raise
                return found
        return Faces.handle(executor, holder, order.label, order.retries, order.methods, order.options.strict)

    def named_actor(self, name: str) -> Any:
        """Return the handle of an actor by its name, or None."""
        return self._handle(self._ask("named", name, None))

    def actor_here(self) -> Any:
        """Return the handle of the actor whose method asks."""
        return self._handle(self._ask("here", current_call.get()))

    def _handle(self, found: Any) -> Any:
        if found is None:
            return None
        number, *described = found
        holder = self.line.holder(number)
        self._drop_with(holder, number)  # the driver has counted it
        return holder.reference(*described)

    def _ask(self, *question: Any) -> Any:
        """Ask the driver something; return its answer, or raise it if it is an error."""
        waiting = _Waiting({})
        answer = self._wait(waiting, None, lambda token: ("ask", token, *question))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # ------------------------------------------------------------ waiting

    def wait(self, refs: Sequence[Any], count: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        """Return which of ``refs`` are done, as soon as ``count`` are, and the others."""
        done = {id(ref) for ref in refs if getattr(holder_of(ref), "is_here", True)}
        if len(done) < count:
            missing = {holder_of(ref).number: holder_of(ref) for ref in refs if id(ref) not in done}
            came = self.wait_for(missing, count - len(done), timeout, fetch=False) or ()
            done |= {id(ref) for ref in refs if holder_of(ref).number in came}
        return [ref for ref in refs if id(ref) in done], [ref for ref in refs if id(ref) not in done]

    def wait_for(
        self, holders: dict[int, Any], count: int, timeout: float | None, *, fetch: bool
    ) -> list[int] | None:
        """Wait until ``count`` of these are done; return their numbers, or None after ``timeout`` seconds."""
        waiting = _Waiting(holders)
        note = ("wait", current_call.get(), tuple(holders), count, fetch)
        if timeout == 0:  # the driver answers at once
            note = ("wait", -1, tuple(holders), 0, fetch)
            timeout = None
        done: list[int] | None = self._wait(waiting, timeout, lambda token: (note[0], token, *note[1:]))
        return done

    def tell(self, holders: dict[int, Any], then: Callable[[], None]) -> None:
        """Have ``then`` called when these are done."""
        token = next(self._tokens)
        self._waits[token] = _Waiting(holders, then)
        self.note(("wait", token, -1, tuple(holders), len(holders), True))

    def _wait(self, waiting: _Waiting, timeout: float | None, note: Callable[[int], Any]) -> Any:
        token = next(self._tokens)
        self._waits[token] = waiting
        try:
            self.note(note(token))
            self.cancelled()  # from here on, it interrupts
            waiting.event.wait(timeout)
        finally:
            self._waits.pop(token, None)
            if not waiting.event.is_set():
                self._tell(("stop waiting", token))
        return waiting.done

    # ------------------------------------------------------------ from the driver, in the thread that listens

    def on_ready(self, token: int, number: int, stored: int, error: bytes | None) -> None:
        """Something that is waited for is done."""
        waiting = self._waits.get(token)
        if waiting is not None and number in waiting.holders:
            waiting.holders[number].settle(None if stored < 0 else self.line.holder(stored), error)

    def on_go(self, token: int, answer: Any) -> None:
        """A wait is over."""
        waiting = self._waits.get(token)
        if waiting is None:
            return
        waiting.done = answer
        waiting.event.set()
        if waiting.then is not None:
            del self._waits[token]
            waiting.then()

    # ------------------------------------------------------------ references

    def _tell(self, message: tuple[Any, ...]) -> None:
        with self.uninterrupted():
            self._notify(message)

    @contextlib.contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """A message is sent whole, even if the call that sends it is cancelled."""
        self.sending += 1
        try:
            yield
        finally:
            self.sending -= 1

    def ask_next(self, stream: Pending, index: int) -> tuple[Pending, _Waiting]:
        """Ask for a result of a stream; return what will have it, and what is told whether there is one."""
        holder, token, waiting = self._new(), next(self._tokens), _Waiting({}, _nothing)
        self._waits[token] = waiting
        self.note(("ask", token, "next", stream.number, index, holder.number))
        self.cancelled()  # from here on, it interrupts
        return holder, waiting

    def _pending(self, number: int) -> Pending:
        return Pending(self, number)

    def _new(self) -> Pending:
        holder: Pending = self.line.holder(next(self._numbers))
        self._drop_with(holder, holder.number)
        return holder

    def _drop_with(self, thing: Any, number: int) -> None:
        """When a thing is collected, the driver need not keep what has the number on its account."""
        weakref.finalize(thing, self._dropped.append, number).atexit = False

    def _send(self, label: str, value: Any, note: tuple[Any, ...], *, arguments: bool = True) -> None:
        from headrace.engines.out_of_band_pickle import pack

        self.settle()
        try:
            with collecting_references() as references:
                packed = pack(value)
        except HeadraceError:
            raise
        except Exception as error:
            raise not_picklable(label, value, error) from error
        links = tuple(holder_of(reference).number for reference in references)
        places = waited_for(value, references) if arguments else ()
        with self.uninterrupted():
            self.line.note_packed((*note, places), msgspec.structs.replace(packed, links=links))


def _nothing() -> None:
    """Nothing was cancelled."""
