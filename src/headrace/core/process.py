"""What holds for this process as a whole: whether it is a worker, and whose the numbers 0 to 2 are."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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
