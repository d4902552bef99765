"""From references and futures to values; in a worker, too, where there is no executor."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitTimeout
from typing import Any

from millrace.engines.links import Ref
from millrace.errors import ArgumentError, TimedOut


def fetched(what: Any, timeout: float | None = None) -> Any:
    """Return the value of a ``Ref``, the result of a future, or a list of them; see ``Executor.get``."""
    until = None if timeout is None else time.monotonic() + timeout
    if isinstance(what, (list, tuple)):
        return [_one(thing, until, timeout) for thing in what]
    return _one(what, until, timeout)


def _one(thing: Any, until: float | None, timeout: float | None) -> Any:
    if isinstance(thing, Ref):
        return thing.get()
    if not isinstance(thing, Future):
        raise ArgumentError(f"get({thing!r}): it takes a Ref, a future, or a list of them.")
    try:
        return thing.result(None if until is None else max(0.0, until - time.monotonic()))
    except (TimeoutError, WaitTimeout) as error:
        if thing.done():
            raise  # the function's own
        raise TimedOut(f"{thing!r} was not done within {timeout:g} s.") from error
