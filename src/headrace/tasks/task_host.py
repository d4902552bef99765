"""What a worker of an executor hosts: it runs functions, or constructs an object and calls its methods."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.core.failures import name_of, user_traceback, words
from headrace.core.ports import WorkerContext
from headrace.engines.out_of_band_pickle import OutOfBandPickle, pack
from headrace.engines.references import Ref, collecting_references
from headrace.errors import BadReturn, HeadraceError, RemoteTraceback, StepError

_NOT_CONSTRUCTED = object()


class CallFailed(Exception):
    """Carries a user's exception, pickled by cloudpickle, which knows classes of the main module."""


class NoObject(Exception):
    """This worker has not constructed the actor's object: it replaced one that died."""


class TaskHost:
    """The worker's side of calls. ``call`` below is the number of a stored value: what to call, and its arguments."""

    current: TaskHost | None = None  # in a worker of an executor

    def __init__(self, context: WorkerContext) -> None:
        self._value = context.value
        self._object: Any = _NOT_CONSTRUCTED
        TaskHost.current = self

    def run(self, call: int, label: str) -> OutOfBandPickle:
        """Call a function with arguments; return what it returned."""

        def action() -> Any:
            function, args, kwargs = self._value(call, True)
            return _called(function, args, kwargs)

        return _packed_result(label, action)

    def construct(self, call: int, label: str) -> None:
        """Construct the actor's object."""

        def action() -> None:
            function, args, kwargs = self._value(call, False)
            self._object = _called(function, args, kwargs)

        _packed_result(label, action).close()

    def call(self, call: int, label: str) -> OutOfBandPickle:
        """Call a method of the actor's object."""
        if self._object is _NOT_CONSTRUCTED:
            raise NoObject(label)

        def action() -> Any:
            method, args, kwargs = self._value(call, True)
            return _called(getattr(self._object, method), args, kwargs)

        return _packed_result(label, action)


def call_each(function: Callable[..., Any], chunk: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a function once for each tuple of arguments; for ``Executor.map`` with a ``chunksize``."""
    return [_called(function, args, {}) for args in chunk]


def restored_error(error: BaseException) -> BaseException:
    """Unpickle the user's exception in the driver, with its traceback in the worker as the cause."""
    import cloudpickle

    if not isinstance(error, CallFailed):
        return error
    error_again, text = cloudpickle.loads(error.args[0])
    error_again.__cause__ = RemoteTraceback(text)
    return error_again  # type: ignore[no-any-return]


def _called(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return function(*map(_resolved, args), **{name: _resolved(value) for name, value in kwargs.items()})


def _resolved(value: Any) -> Any:
    return value.get() if isinstance(value, Ref) else value


def _packed_result(label: str, action: Callable[[], Any]) -> OutOfBandPickle:
    """Return what ``action`` returns, packed; raise ``CallFailed`` for whatever it raises."""
    try:
        value = action()
    except BaseException as error:
        raise CallFailed(_packed_error(label, error)) from None
    if inspect.iscoroutine(value):
        value.close()
        replacement = BadReturn(
            f"{label} is async, and a worker does not await it: it runs one call after another. Call "
            "asyncio.run(…) in a function that is not async."
        )
        raise CallFailed(_packed_error(label, replacement))
    try:
        with collecting_references() as references:
            packed = pack(value)
        return replace(packed, links=tuple(ref.holder.number for ref in references))
    except Exception as error:
        replacement = BadReturn(
            f"{label} returned a {type(value).__name__} that cannot travel back: {name_of(error)}: "
            f"{words(error)}. {_advice(value)}"
        )
        raise CallFailed(_packed_error(label, replacement)) from None


def _advice(value: Any) -> str:
    if inspect.isgenerator(value):
        return "Return list(…) of it: a call has one result."
    return "Return plain data, such as arrays, tables, lists and dicts."


def _packed_error(label: str, error: BaseException) -> bytes:
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


def _traceback(error: BaseException) -> str:
    if isinstance(error, HeadraceError) and error.__cause__ is None:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return user_traceback(error)
