"""``ray.put``, ``get``, ``wait``, ``kill`` and ``cancel``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from typing import Any

from headrace.compat.ray.exceptions import as_ray_raises
from headrace.compat.ray.session import session
from headrace.core.warn import warn
from headrace.errors import ArgumentError
from headrace.tasks import ActorHandle, CallFuture, Ref
from headrace.tasks.fetching import fetched


def put(value: Any) -> Ref[Any]:
    """Store a value once for all workers; see ``headrace.Executor.put``."""
    return session().put(value)


def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Return a value, or a list of them; see ``headrace.Executor.get``. A task's error is also a ``RayTaskError``."""
    try:
        return fetched(refs, timeout)
    except Exception as error:
        raised = as_ray_raises(error)
        raise raised from raised.__cause__


def wait(
    refs: Sequence[Any], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[Any], list[Any]]:
    """Wait until ``num_returns`` references are done, or ``timeout`` seconds; return both.

    First those that are done, at most that many; then the others. A list each.
    """
    if isinstance(refs, (Ref, CallFuture)):
        raise ArgumentError("ray.wait takes a list of references.")
    listed = list(refs)
    if len(set(listed)) < len(listed):
        raise ArgumentError("ray.wait: a reference is in the list twice.")
    if not 0 < num_returns <= len(listed):
        raise ArgumentError(f"ray.wait: num_returns={num_returns} of {len(listed)} references.")
    until = None if timeout is None else time.monotonic() + timeout
    while len(done := [ref for ref in listed if not isinstance(ref, Future) or ref.done()]) < num_returns:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            break
        wait_for([ref for ref in listed if isinstance(ref, Future) and not ref.done()], left, FIRST_COMPLETED)
    first = done[:num_returns]
    chosen = set(first)
    return first, [ref for ref in listed if ref not in chosen]


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor at once."""
    if not isinstance(actor, ActorHandle):
        raise ArgumentError(f"ray.kill({actor!r}): it takes the handle of an actor.")
    actor._life.kill()


def cancel(ref: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel a call that has not begun. One that runs goes on, even with ``force``, with a warning."""
    if not isinstance(ref, CallFuture):
        raise ArgumentError(f"ray.cancel({ref!r}): it takes what a call of remote() returned.")
    if not ref.cancel() and not ref.done():
        warn(
            f"ray.cancel: {ref!r} goes on; only what has not begun can be cancelled. An actor that is killed "
            "(ray.kill) stops at once.",
        )
