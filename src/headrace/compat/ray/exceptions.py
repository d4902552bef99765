"""Ray's names for errors."""

from __future__ import annotations

from concurrent.futures import CancelledError as TaskCancelledError
from typing import Any

from headrace.compat.ray.offered import missing
from headrace.errors import ActorDied as RayActorError
from headrace.errors import CallLost as WorkerCrashedError
from headrace.errors import HeadraceError as RayError
from headrace.errors import TimedOut as GetTimeoutError

ActorDiedError = RayActorError
OutOfMemoryError = WorkerCrashedError

__all__ = [
    "ActorDiedError",
    "GetTimeoutError",
    "OutOfMemoryError",
    "RayActorError",
    "RayError",
    "RayTaskError",
    "TaskCancelledError",
    "WorkerCrashedError",
]


class RayTaskError(RayError):
    """What a task raised: the error is of this class and of its own at once, and ``cause`` is the error itself."""

    cause: BaseException

    def __str__(self) -> str:
        return str(self.cause)


def as_ray_raises(error: BaseException) -> BaseException:
    """Return a user's error as Ray raises it; errors of ours as they are.

    >>> error = as_ray_raises(ValueError("no"))
    >>> isinstance(error, ValueError), isinstance(error, RayTaskError), error.cause
    (True, True, ValueError('no'))
    """
    if isinstance(error, (RayError, TaskCancelledError)) or not isinstance(error, Exception):
        return error
    kind = type(error)
    try:
        both: Any = type(f"RayTaskError({kind.__name__})", (RayTaskError, kind), {})
        made = both.__new__(both, *error.args)
    except TypeError:  # a class that allows no other beside it
        made = RayTaskError(*error.args)
    made.__dict__.update(error.__dict__)
    made.args = error.args
    made.cause = error
    made.__cause__ = error.__cause__
    return made  # type: ignore[no-any-return]


def __getattr__(name: str) -> Any:
    raise missing("ray.exceptions", name, __all__)
