"""What holds for this process: whether it is a worker, whose the numbers 0 to 2 are, and how it waits for others."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")

_worker = False
_forks = False  # the user's code has forked this worker
_is_fork = False  # this process is such a fork


def become_worker() -> None:
    """Say that this process works for a driver, which alone decides when a run ends.

    From now on, forks of it are of the user's making.
    """
    global _worker
    _worker = True
    os.register_at_fork(before=_before_fork, after_in_child=_in_fork)


def _before_fork() -> None:
    global _forks
    _forks = True


def _in_fork() -> None:
    global _is_fork
    _is_fork = True


def is_worker() -> bool:
    """Say whether this process works for a driver."""
    return _worker


def has_forked() -> bool:
    """Say whether the user's code has forked this worker."""
    return _forks


def end_fork(error: BaseException | None = None) -> None:
    """End this process if it is a fork of a worker that the user's code made; that code has raised, or returned.

    A fork has the stack of the worker. It would carry out the worker's calls, write to its files and remove them.
    It ends as a child of ``multiprocessing`` does: with the code of ``sys.exit``, with 1 after another error, else
    with 0.
    """
    if not _is_fork:
        return
    code = 1
    try:
        if error is None or isinstance(error, SystemExit):
            told = error.code if error is not None else None
            if isinstance(told, int) or told is None:
                code = told or 0
            else:
                print(told, file=sys.stderr)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        flush_streams()
    finally:
        os._exit(code & 0xFF)


def ending_forks(call: Callable[..., T]) -> Callable[..., T]:
    """Return a function of the user's that ends the forks which it makes, once they leave it."""

    def called(*args: Any) -> T:
        try:
            value = call(*args)
        except BaseException as error:
            end_fork(error)
            raise
        end_fork()
        return value

    return called


def flush_streams() -> None:
    """Flush what the user's code printed, whatever it has put in the place of the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def hold_standard_streams() -> None:
    """Open the null device in the place of standard streams that are closed.

    Whatever is opened next would take their numbers: a journal or a socket, into which a library then writes its
    messages, or which a child process gets for its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            if opened == number:
                os.set_inheritable(opened, True)
            else:  # another thread was faster
                os.close(opened)


@contextmanager
def importing() -> Iterator[None]:
    """Let the garbage collector rest while much is imported: it would look at all of that again and again.

    >>> with importing():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Spent(threading.local):
    seconds = 0.0


_spent = _Spent()


@contextmanager
def decoding() -> Iterator[None]:
    """Count the time of the ``with`` block as decoding, no longer as reading.

    >>> before = decoded()
    >>> with decoding():
    ...     pixels = bytes(1000)
    >>> decoded() > before
    True
    """
    start = time.perf_counter()
    try:
        yield
    finally:
        _spent.seconds += time.perf_counter() - start


def decoded() -> float:
    """Return the seconds that this thread has spent on decoding so far."""
    return _spent.seconds


P = ParamSpec("P")


def backoff(tries: int, first: float, longest: float, *, spread: float = 0.5) -> float:
    """Return how many seconds to wait after ``tries`` tries that failed, one at least.

    It is ``first`` after the first, twice as long each time, and ``longest`` at most. ``spread``: the share of it
    that is drawn by lot, so that those who failed together do not come back together.

    >>> [backoff(tries, 0.5, 3.0, spread=0.0) for tries in (1, 2, 3, 4, 1_000)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    >>> 0.25 <= backoff(1, 0.5, 3.0) <= 0.5
    True
    """
    import random  # which takes a millisecond

    whole = min(longest, first * 2.0 ** min(max(tries, 1) - 1, 60))
    return whole * (1 - spread * random.random()) if spread else whole


def lock(fd: int, *, patience: float | None = 0.0, shared: bool = False) -> bool:
    """Take the lock of an open file; say whether it was free within ``patience`` seconds. None: wait for ever.

    It is held until the file is closed, or ``unlock`` is called. ``shared``: others may hold it in the same way.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if patience is None:
        fcntl.flock(fd, kind)
        return True
    until, tries = time.monotonic() + patience, 0
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            tries += 1
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, backoff(tries, 0.001, 0.1, spread=0.0)))
        else:
            return True


async def when_free(look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what ``look`` returns for these arguments.

    While another process holds what it needs, it raises ``BlockingIOError``, and is called again after a while. The
    event loop goes on in the meantime.
    """
    import asyncio  # those who wait otherwise do without

    tries = 0
    while True:
        try:
            return look(*args, **kwargs)
        except BlockingIOError:
            tries += 1
        await asyncio.sleep(backoff(tries, 0.001, 0.1))


def unlock(fd: int) -> None:
    """Release the lock of an open file."""
    fcntl.flock(fd, fcntl.LOCK_UN)
