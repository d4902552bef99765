"""What a call raised, on its way to whoever waits for it; and what cannot travel."""

from __future__ import annotations

import traceback
from typing import Any

from headrace.core.failures import name_of, user_traceback, words
from headrace.errors import HeadraceError, NotPicklable, RemoteTraceback, StepError
from headrace.plan.functions import Function
from headrace.plan.pickling import why_not_picklable

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
    import cloudpickle

    if isinstance(error, CallFailed):
        error = error.args[0]
    if not isinstance(error, bytes):
        return error
    error_again, text = cloudpickle.loads(error)
    error_again.__cause__ = RemoteTraceback(text)
    return error_again  # type: ignore[no-any-return]


def not_picklable(label: str, value: Any, error: Exception) -> NotPicklable:
    """Return the error that names what of a call, or of what is put, cannot be pickled."""
    import cloudpickle

    what, args, kwargs = (None, (value,), {}) if label == "put" else value[:3]
    function = Function(what if callable(what) else _nothing, args=args, kwargs=kwargs)
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


def _nothing() -> None:
    """Stands for the function where only data is to blame."""
