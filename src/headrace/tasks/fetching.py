"""From references and futures to values; in a worker, too, where there is no executor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as WaitTimeout
from typing import Any

from headrace.engines.references import Ref
from headrace.errors import ArgumentError, TimedOut


def fetched(what: Any, timeout: float | None = None) -> Any:
    """Return the value of a ``Ref``, the result of a future, or a list of them; see ``Executor.get``."""
    until = None if timeout is None else time.monotonic() + timeout
    if isinstance(what, (list, tuple)):
        _wait_for_all(what, timeout)
        return [_one(item, until, timeout) for item in what]
    _wait_for_all([what], timeout)
    return _one(what, until, timeout)


def _wait_for_all(items: Sequence[Any], timeout: float | None) -> None:
    """In a worker, ask the driver for all of them at once."""
    holders = [item.holder for item in items if isinstance(item, Ref)]
    asking = next((holder for holder in holders if hasattr(holder, "wait_for")), None)
    if asking is not None:
        asking.wait_for(holders, timeout)


def _one(item: Any, until: float | None, timeout: float | None) -> Any:
    if isinstance(item, Ref):
        return item.get()
    if not isinstance(item, Future):
        raise ArgumentError(f"get({item!r}): it takes a Ref, a future, or a list of them.")
    try:
        return item.result(None if until is None else max(0.0, until - time.monotonic()))
    except (TimeoutError, WaitTimeout) as error:
        if item.done():
            raise  # the function's own
        raise TimedOut(f"{item!r} was not done within {timeout:g} s.") from error


def wait_for_first(futures: Sequence[Future[Any]], timeout: float | None) -> None:
    """Wait until one of them is done; in a worker, so that others may have its cores meanwhile."""
    inner = [future.inner for future in futures if hasattr(future, "inner")]
    if inner and len(inner) == len(futures):
        inner[0].holder.core.wait(inner, 1, timeout)
        wait(futures, 0.001, FIRST_COMPLETED)  # what came is passed on by another thread
    else:
        wait(futures, timeout, FIRST_COMPLETED)
