"""Ray's names for errors."""

from __future__ import annotations

import functools
from concurrent.futures import CancelledError
from typing import Any

from headrace.annex.tasks.hosting.task_host import WrongCount
from headrace.annex.tasks.hosting.worker_core import IN_CONSTRUCTOR
from headrace.compat.ray.offered import missing
from headrace.engines.references import Shown
from headrace.errors import ActorDied as RayActorError
from headrace.errors import CallCancelled as TaskCancelledError
from headrace.errors import CallLost as WorkerCrashedError
from headrace.errors import ExecutorClosed
from headrace.errors import HeadraceError as RayError
from headrace.errors import StepError as RayTaskError
from headrace.errors import TimedOut as GetTimeoutError

ActorDiedError = RayActorError
ActorUnavailableError = RayActorError
ObjectLostError = ExecutorClosed
OutOfMemoryError = WorkerCrashedError
UserCodeException = RayTaskError  # what a function raises in a step of a dataset
RayTaskError.cause = property(lambda self: self)  # type: ignore[attr-defined]

__all__ = [
    "ActorDiedError", "ActorUnavailableError", "GetTimeoutError", "ObjectLostError", "OutOfMemoryError",
    "RayActorError", "RayError", "RayTaskError", "TaskCancelledError", "UserCodeException",
    "WorkerCrashedError",
]  # fmt: skip


class _OfTask(RayTaskError):
    """What a task raised: the error is of this class and of its own at once, and ``cause`` is the error itself."""

    cause: Any = None
    traceback_str = property(lambda self: str(self.__cause__ or self.cause))

    def __str__(self) -> str:
        return str(self.cause)

    def __reduce__(self) -> Any:
        return as_ray_raises, (self.cause,)

    def as_instanceof_cause(self) -> _OfTask:
        """Return the error as one of the class of its cause, too: as it is."""
        return self


class RayActorInitError(_OfTask, RayActorError):
    """What the constructor of an actor raised: the actor has died of it."""


@functools.cache
def _both(base: Any, kind: Any) -> Any:
    """Return the class of errors that are both; the same each time, so that they can be pickled."""
    return type(f"RayTaskError({kind.__name__})", (base, kind), {})


def as_ray_raises(error: BaseException) -> BaseException:
    """Return a user's error as Ray raises it; errors of ours as they are.

    >>> error = as_ray_raises(ValueError("no"))
    >>> isinstance(error, ValueError), isinstance(error, RayTaskError), error.cause
    (True, True, ValueError('no'))
    """
    if isinstance(error, CancelledError) and not isinstance(error, TaskCancelledError):
        return TaskCancelledError(str(error) or "The call was cancelled before it began.")
    made_already = isinstance(error, RayError) and not isinstance(error, WrongCount)
    if made_already or isinstance(error, _OfTask) or not isinstance(error, Exception):
        return error
    kind = type(error)
    base = RayActorInitError if getattr(error, IN_CONSTRUCTOR, False) else _OfTask
    try:
        both = _both(base, kind)  # type: ignore[arg-type]
        made = both.__new__(both, *error.args)
    except TypeError:  # a class that allows no other beside it
        made = base(*error.args)
    made.__dict__.update(error.__dict__)
    made.args = error.args
    made.cause = error
    made.__cause__ = error.__cause__
    return made  # type: ignore[no-any-return]


Shown.error = staticmethod(as_ray_raises)


# What one machine never raises: for programs that catch it.
_NEVER = (
    "ActorPlacementGroupRemoved", "ActorUnschedulableError", "AsyncioActorExit", "CrossLanguageError",
    "LocalRayletDiedError", "NodeDiedError",
    "ObjectFetchTimedOutError", "ObjectFreedError", "ObjectReconstructionFailedError",
    "ObjectStoreFullError", "OutOfDiskError", "OwnerDiedError", "PendingCallsLimitExceeded",
    "RayChannelError", "RaySystemError", "ReferenceCountingAssertionError", "RuntimeEnvSetupError",
    "TaskPlacementGroupRemoved", "TaskUnschedulableError", "UnserializableException",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _NEVER:
        return globals().setdefault(name, type(name, (RayError,), {"__module__": __name__}))
    raise missing("ray.exceptions", name, __all__)
