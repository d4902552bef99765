"""What a worker of an executor hosts: it runs functions, and methods of the one object that it was told to make."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from millrace.core.ports import WorkerContext
from millrace.engines.links import Ref, leaving
from millrace.engines.parcel import Parcel, pack
from millrace.errors import BadReturn, MillraceError, RemoteTraceback, StepError
from millrace.run.failures import name_of, user_traceback, words

_NONE_YET = object()


class CallFailed(Exception):
    """Carries a user's exception, pickled by cloudpickle, which knows classes of the main module."""


class NoObject(Exception):
    """This worker has not made the actor's object: it took the place of one that died."""


class Hosted:
    """The worker's side of calls. ``call`` below is the number of a kept value: what to call, and its arguments."""

    here: Hosted | None = None  # in a worker of an executor: the one that it hosts

    def __init__(self, context: WorkerContext) -> None:
        self._value = context.value
        self._object: Any = _NONE_YET
        Hosted.here = self

    def run(self, call: int, label: str) -> Parcel:
        """Call a function with arguments; return what it returned."""

        def act() -> Any:
            function, args, kwargs = self._value(call, True)
            return _called(function, args, kwargs)

        return _outcome(label, act)

    def construct(self, call: int, label: str) -> None:
        """Make the actor's object."""

        def act() -> None:
            function, args, kwargs = self._value(call, False)
            self._object = _called(function, args, kwargs)

        _outcome(label, act).close()

    def call(self, call: int, label: str) -> Parcel:
        """Call a method of the actor's object."""
        if self._object is _NONE_YET:
            raise NoObject(label)

        def act() -> Any:
            method, args, kwargs = self._value(call, True)
            return _called(getattr(self._object, method), args, kwargs)

        return _outcome(label, act)


def call_each(function: Callable[..., Any], chunk: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a function once for each tuple of arguments; for ``Executor.map`` with a ``chunksize``."""
    return [_called(function, args, {}) for args in chunk]


def revived(error: BaseException) -> BaseException:
    """Make the user's exception again, in the driver, with its traceback in the worker as the cause."""
    import cloudpickle

    if not isinstance(error, CallFailed):
        return error
    made, text = cloudpickle.loads(error.args[0])
    made.__cause__ = RemoteTraceback(text)
    return made  # type: ignore[no-any-return]


def _called(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return function(*map(_resolved, args), **{name: _resolved(value) for name, value in kwargs.items()})


def _resolved(value: Any) -> Any:
    return value.get() if isinstance(value, Ref) else value


def _outcome(label: str, act: Callable[[], Any]) -> Parcel:
    """Return what ``act`` returns, packed; raise ``CallFailed`` for whatever it raises."""
    try:
        value = act()
    except BaseException as error:
        raise CallFailed(_packed_error(label, error)) from None
    if inspect.iscoroutine(value):
        value.close()
        unfit = BadReturn(
            f"{label} is async, and nobody awaits it here: a worker does one thing after another. Call "
            "asyncio.run(…) in a function that is not async."
        )
        raise CallFailed(_packed_error(label, unfit))
    try:
        with leaving() as met:
            parcel = pack(value)
        return replace(parcel, links=tuple(ref.holder.number for ref in met))
    except Exception as error:
        unfit = BadReturn(
            f"{label} returned a {type(value).__name__} that cannot travel back: {name_of(error)}: "
            f"{words(error)}. {_advice(value)}"
        )
        raise CallFailed(_packed_error(label, unfit)) from None


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
    told = StepError(f"{label} raised {name_of(error)}: {words(error)}")
    return cloudpickle.dumps((told, text))  # type: ignore[no-any-return]


def _traceback(error: BaseException) -> str:
    if isinstance(error, MillraceError) and error.__cause__ is None:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return user_traceback(error)
