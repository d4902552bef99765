"""``ray.put``, ``get``, ``wait``, ``kill`` and ``cancel``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError
from concurrent.futures import wait as wait_for
from typing import Any, NoReturn

from headrace.annex.tasks import ActorHandle, CallFuture, Ref
from headrace.annex.tasks.actors import METHOD_OPTIONS
from headrace.annex.tasks.admission import CallOptions
from headrace.annex.tasks.futures import ResultStream, fetched
from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.annex.tasks.hosting.worker_core import InnerFuture
from headrace.compat.ray.around import tried_again
from headrace.compat.ray.exceptions import as_ray_raises
from headrace.compat.ray.offered import check_options
from headrace.compat.ray.session import session
from headrace.engines.references import read_only
from headrace.errors import ArgumentError, EngineError, UnknownArgument


def put(value: Any, *, _owner: Any = None) -> Ref[Any]:
    """Store a value once for all workers; see ``headrace.Executor.put``. ``TypeError`` for a reference."""
    if isinstance(value, (Ref, CallFuture)):
        raise UnknownArgument("ray.put: it is a reference already. A list of references can be put.")
    return session().put(value)


def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Return a value, or a list of them; see ``headrace.Executor.get``. A task's error is also a ``RayTaskError``."""
    if isinstance(refs, ResultStream):  # of num_returns="dynamic"
        return DynamicObjectRefGenerator(list(refs))
    try:
        return read_only(fetched(refs, timeout))
    except (Exception, CancelledError) as error:
        raised = as_ray_raises(error)
        raise raised from raised.__cause__


class DynamicObjectRefGenerator(list[Any]):
    """The references to all that a call with ``num_returns="dynamic"`` has yielded."""


def wait(
    refs: Sequence[Any], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[Any], list[Any]]:
    """Wait until ``num_returns`` references are done, or ``timeout`` seconds; return both.

    First those that are done, at most that many; then the others. A list each.
    """
    if not isinstance(refs, Sequence):
        raise UnknownArgument("ray.wait takes a list of references.")
    listed = list(refs)
    for ref in listed:
        if not isinstance(ref, (Ref, CallFuture, ResultStream)):
            raise UnknownArgument(f"ray.wait takes references, and got {ref!r}.")
    if not listed:
        return [], []
    if len(set(listed)) < len(listed):
        raise ArgumentError("ray.wait: a reference is in the list twice.")
    if not 0 < num_returns <= len(listed):
        raise ArgumentError(f"ray.wait: num_returns={num_returns} of {len(listed)} references.")
    streams = any(isinstance(ref, ResultStream) for ref in listed)
    here = TaskHost.current
    if here is not None and not streams:
        done, _ = here.core.wait(listed, num_returns, timeout)
        return _divided(listed, done, num_returns)
    until = None if timeout is None else time.monotonic() + timeout
    while len(done := [ref for ref in listed if _is_ready(ref)]) < num_returns:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            break
        if streams:
            time.sleep(0.005)
        else:
            wait_for([ref for ref in listed if not _is_ready(ref)], left, FIRST_COMPLETED)
    return _divided(listed, done, num_returns)


def _is_ready(ref: Any) -> bool:
    """Say whether a call is over, or a stream has its next reference; a value that was put is there."""
    if isinstance(ref, ResultStream):
        return ref.has_next(0)
    return ref.done() if isinstance(ref, (CallFuture, InnerFuture)) else True


def _divided(listed: list[Any], done: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
    first = done[:num_returns]
    chosen = set(first)
    return first, [ref for ref in listed if ref not in chosen]


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor at once. With ``no_restart=False`` it is made anew, if ``max_restarts`` allows."""
    if not isinstance(actor, ActorHandle):
        raise ArgumentError(f"ray.kill({actor!r}): it takes the handle of an actor.")
    actor._kill(no_restart=no_restart)


def cancel(ref: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel a call, and with ``recursive`` those that it has made: ``ray.get`` raises ``TaskCancelledError``.

    One that runs is interrupted where it runs Python code; ``force`` ends its worker. A method that runs goes on,
    unless it is ``async``.
    """
    if not isinstance(ref, (CallFuture, InnerFuture, ResultStream)):
        raise ArgumentError(f"ray.cancel({ref!r}): it takes what a call of remote() returned.")
    ref.cancel(force, recursive)


def exit_actor() -> NoReturn:
    """End the actor whose method calls this; calls that wait raise ``RayActorError``."""
    if TaskHost.current is None or not TaskHost.current.is_actor:
        raise EngineError("exit_actor() ends the actor whose method calls it: this is none.")
    raise SystemExit


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Return the handle of the actor that was made with ``name``; ``ValueError`` if there is none."""
    found = session()._core.named_actor(name)
    if found is None:
        raise ArgumentError(f"There is no actor with the name {name!r}, or it has ended.")
    return found


def method(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say of a method, above it, how many results it has, or how often a call is made again if the actor dies.

    ``@ray.method(num_returns=2, max_task_retries=3)``. With ``retry_exceptions``, also if it raises one of these, or
    any (True).
    """
    known = {"num_returns": "num_returns", "max_task_retries": "max_retries"}
    again = options.pop("retry_exceptions", None)
    check_options("ray.method", options, tuple(known))
    said = CallOptions().updated(
        "ray.method", {known[name]: options[name] for name in known if name in options}
    )

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        if again:
            function = tried_again(function, said.max_retries or 0, again)
        setattr(function, METHOD_OPTIONS, said)
        return function

    return mark
