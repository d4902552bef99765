"""A worker that has imported what all of them need, and no code of the user's, makes more by fork.

The first worker of a run imports, and before it does anything else, it may be asked for a *template*: a copy of
itself with one thread, which waits for requests and answers each with a fork of itself. A fork takes two
milliseconds where a new interpreter with its imports takes 200, and shares their memory.

Forks are children of the driver (``CLONE_PARENT``), as spawned workers are: it waits for them, sees how they end and
finds them below itself. The death of the template changes nothing for them. ``os.fork`` cannot do that, so the call
is made here, with the same preparations (``PyOS_BeforeFork``, …). Of what glibc's ``fork`` does beside it, one
thread needs nothing but its number, which the kernel writes.

Both requests and answers are messages of ``wire``. To the first worker: ``("template",)``, answered by the template
with ``("template", pid, blas)``, or by the worker with ``("refused", why)``. To the template: a ``ForkRequest`` with
descriptors, answered with ``("forked", pid)``, ``("failed", errno)`` or ``("refused", why)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import platform
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.engines.local import wire
from headrace.engines.local.orphans import die_with

_CLONE = {"x86_64": 56, "aarch64": 220}  # the system call; its arguments are those of these two
_CLONE_PARENT = 0x8000
_CLONE_CHILD_CLEARTID = 0x200000
_CLONE_CHILD_SETTID = 0x1000000
_NAME = "headrace-fork"
_PR_GET_TID_ADDRESS = 40
_SET_THREADS_OF_BLAS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
_set_by_imports: dict[str, str] = {}
"""Variables that libraries have set for themselves, as scikit-learn does for OpenMP."""


class ForkRequest(msgspec.Struct, frozen=True):
    """What a forked worker shall have as a spawned one would.

    Four descriptors come along: its end of the socket, its stdout and stderr, and its folder. ``threads``: how many
    libraries that are imported already shall use, by the variable that they read when they were.
    """

    environment: Mapping[str, str]
    path: list[str]
    pause: float
    threads: Mapping[str, int]


def supported() -> bool:
    """Say whether workers can be forked on this system: Linux with glibc, on x86-64 and 64-bit ARM."""
    return (
        sys.platform == "linux"
        and sys.maxsize > 1 << 32
        and platform.machine() in _CLONE
        and "CS_GNU_LIBC_VERSION" in os.confstr_names
    )


def import_all(modules: tuple[str, ...]) -> None:
    """Import what a template has. A module that is missing or broken is reported by who needs it.

    Nothing of it is garbage: the collector, which a worker starts without, begins its work after that.
    """
    before = dict(os.environ)
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    _set_by_imports.update((name, value) for name, value in os.environ.items() if before.get(name) != value)
    gc.freeze()
    gc.enable()


def stand_by(fd: int, control: int, parent: int, blas: int) -> tuple[int, float]:
    """Wait until this worker is needed as such, and become a template on the way if that is asked for.

    Returns, in the worker and in each of the forks, the descriptor of its socket and how long it pauses. ``blas``:
    how many threads numpy's BLAS, which was loaded for one, shall have in the worker.
    """
    asked = socket.socket(fileno=control)
    asked.setblocking(True)
    poll = select.poll()
    for each in (fd, control):
        poll.register(each, select.POLLIN)
    events = dict(poll.poll())
    if events.get(control, 0) & select.POLLIN and _is_asked(asked):
        why = _unsafe({fd, control})
        if not why:
            gc.freeze()  # or the first collection in each fork would copy all that was imported
            try:
                name = _name()
                if not _fork(_NAME):
                    os.close(fd)
                    _leave_streams()
                    return _serve(asked, parent, name)
            except OSError as error:
                why = str(error)
        if why:
            with contextlib.suppress(OSError):
                wire.send(asked, ("refused", why))
    asked.close()
    if blas:
        os.environ["OPENBLAS_NUM_THREADS"] = str(blas)
        limit_threads({"OPENBLAS_NUM_THREADS": blas})
    return fd, 0.0


def _is_asked(asked: socket.socket) -> bool:
    try:
        wire.Inbox().receive(asked)
    except (EOFError, OSError):  # the driver has closed its end: it needs no template
        return False
    return True


def _leave_streams() -> None:
    """Hold none of the pipes of the worker that this was: their end would never be seen."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _serve(asked: socket.socket, parent: int, name: str) -> tuple[int, float]:
    """Fork a worker of that name for each request until the driver closes its end; returns in the forks."""
    die_with(parent)
    os.setsid()
    _answer(asked, ("template", os.getpid(), bool(_blas())))
    inbox = wire.Inbox()
    while True:
        try:
            request = inbox.receive(asked)
        except (EOFError, OSError):
            os._exit(0)
        fds = [inbox.fds.popleft() for _ in range(4)]
        why = _unsafe({asked.fileno(), *fds})
        answer: tuple[Any, ...] = ("refused", why)
        if not why:
            try:
                pid = _fork(name)
            except OSError as error:
                answer = ("failed", error.errno)
            else:
                if not pid:
                    die_with(parent)
                    asked.close()
                    return _become(request, *fds), request.pause
                answer = ("forked", pid)
        for fd in fds:
            os.close(fd)
        _answer(asked, answer)


def _name() -> str:
    """Return the name of this process that `ps` shows."""
    with contextlib.suppress(OSError), open("/proc/self/comm") as file:
        return file.read().strip()
    return ""


def _rename(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _answer(asked: socket.socket, answer: tuple[Any, ...]) -> None:
    try:
        wire.send(asked, answer)
    except OSError:  # the driver has closed its end
        os._exit(0)


def _become(request: ForkRequest, fd: int, out: int, err: int, folder: int) -> int:
    """Make this fork what a spawned worker is when it has imported the same."""
    os.setsid()
    for stream, number in ((out, 1), (err, 2)):
        os.dup2(stream, number)
        os.close(stream)
    os.fchdir(folder)
    os.close(folder)
    os.environ.clear()
    os.environ.update({**request.environment, **_set_by_imports})
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 keeps the number from before
    sys.path[:] = request.path
    importlib.invalidate_caches()
    limit_threads(request.threads)
    if (
        "numpy.random" in sys.modules
    ):  # else it seeds itself when it is imported; ``random`` does so after a fork
        import numpy.random

        numpy.random.seed()
    return fd


def limit_threads(threads: Mapping[str, int]) -> None:
    """Have libraries that are imported already use so many threads, by the variable that they read when they were."""
    for variable, number in threads.items():
        if variable == "OPENBLAS_NUM_THREADS":
            for limit in _blas():
                limit(number)
        elif "pyarrow" in sys.modules:
            import pyarrow

            {"OMP_NUM_THREADS": pyarrow.set_cpu_count, "ARROW_IO_THREADS": pyarrow.set_io_thread_count}[
                variable
            ](number)


def _blas() -> list[Any]:
    """Return what sets the number of threads of each OpenBLAS: numpy has one, and scipy another."""
    found = []
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[-1].strip() for line in file if "openblas" in line}
        for path in sorted(paths):
            library = ctypes.CDLL(path)
            found += [getattr(library, name) for name in _SET_THREADS_OF_BLAS if hasattr(library, name)][:1]
    return found


def _unsafe(known: set[int]) -> str:
    """Say why this process cannot be forked, if so: a fork has one thread, and whatever is open here."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "what is imported has started threads"
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = set(map(int, os.listdir(listing))) - known - {0, 1, 2, listing}
    finally:
        os.close(listing)
    found = {fd for fd in found if _is_open(fd)}
    return f"what is imported holds descriptors open: {sorted(found)}" if found else ""


def _is_open(fd: int) -> bool:
    """Say whether a descriptor is open; that of the listing itself is not any more."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _fork(name: str) -> int:
    """Fork this process as a child of its parent, which has that name at once; return 0 in the child.

    Raises ``OSError`` if the kernel does not allow it.
    """
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    number = ctypes.c_void_p()  # where the kernel writes the thread's number, for the C library
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(number), *[ctypes.c_ulong(0)] * 3) or not number.value:
        raise OSError(ctypes.get_errno(), "the kernel does not say where the number of this thread is")
    flags = _CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD
    call = [ctypes.c_long(_CLONE[platform.machine()]), ctypes.c_ulong(flags), None, None, number, None]
    if platform.machine() == "aarch64":
        call[4:6] = [None, number]
    before = _name()
    _rename(name)
    every = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(*call))
    if pid:
        error = ctypes.get_errno()
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    signal.pthread_sigmask(signal.SIG_SETMASK, every)
    if pid:
        _rename(before)
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid
