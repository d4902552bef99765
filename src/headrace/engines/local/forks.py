"""The template of a driver's workers, and the workers that it forks, as the driver holds them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping

from headrace.engines.local import wire
from headrace.engines.local.template import ForkRequest

_ANSWERS_WITHIN = 30.0  # seconds: its worker imports first, perhaps from a slow disk
# Beginnings of variables that nothing reads while it is imported.
_FREE = (
    "HEADRACE_",
    "PYTEST_CURRENT_TEST",
)
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "ARROW_IO_THREADS",
)
_LIMITS = [getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]
_OF_STATUS = ("Umask", "Uid", "Gid", "Groups", "SigIgn", "Cap", "NoNewPrivs", "Seccomp", "Cpus_", "Mems_")


class TemplateLost(Exception):
    """A template ended before it said whether it has made a worker: that may have what it was given."""


class ForkedProcess:
    """A child of this process that it has not started itself; ``returncode`` is as in ``subprocess``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end, or for some seconds, and return its exit status: None if it goes on.

        Seconds are for systems without descriptors of processes: with one, that is waited for first.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self.returncode is None:
                    self._reap(os.WNOHANG if end is not None else 0)
                if self.returncode is not None or (end is not None and time.monotonic() >= end):
                    return self.returncode
            time.sleep(0.005)

    def _reap(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # the program ignores SIGCHLD, or waits for strangers' children
            self.returncode = 0
        else:
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended and its number may be another's."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Template:
    """A process that forks workers; see ``template``. All but ``ask`` is for one thread, that of the ``Spawner``.

    Parameters
    ----------
    sock
        To a first worker that stands by.
    environment, threads
        What that worker was started with.
    fixed
        It has imported libraries whose number of threads nobody can change any more.
    """

    def __init__(
        self, sock: socket.socket, environment: Mapping[str, str], threads: int, *, fixed: bool = False
    ) -> None:
        self._sock = sock
        self._inbox = wire.Inbox()
        self._environment = environment
        self._threads = threads
        self._fixed = fixed
        self._circumstances = circumstances()
        self._process: ForkedProcess | None = None
        self._sets_blas = False
        self._asked = False
        self._asking = threading.Lock()
        self.closed = False
        self.refused = ""  # why it cannot fork, if it said so

    def ask(self) -> None:
        """Have the first worker make the template once it has imported; does not wait."""
        with self._asking:
            if not self._asked:
                self._asked = True
                with contextlib.suppress(OSError):  # the worker has gone
                    wire.send(self._sock, ("template",))

    def fits(self, environment: Mapping[str, str], threads: int) -> bool:
        """Say whether a fork would be what a process is that this one starts now."""
        if self.closed or circumstances() != self._circumstances:
            return False
        names = environment.keys() | self._environment.keys()
        differ = {name for name in names if environment.get(name) != self._environment.get(name)}
        if threads != self._threads and not self._fixed:
            differ -= {name for name in THREADS if name not in os.environ}
        return all(name.startswith(_FREE) for name in differ)

    def is_current(self, environment: Callable[[int], Mapping[str, str]]) -> bool:
        """Say whether it is there, and fits what this process would start now."""
        return self._asked and self.fits(environment(self._threads), self._threads)

    def fork(
        self, environment: Mapping[str, str], threads: int, path: list[str], pause: float, fds: list[int]
    ) -> ForkedProcess | None:
        """Fork a worker with such descriptors: its end of the socket, stdout and stderr.

        Returns None if it has to be spawned; raises ``OSError`` if the kernel allows no further process, and
        ``TemplateLost`` if nobody knows whether a worker has these descriptors.
        """
        try:
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # it may be entered, but not read
            return None
        try:
            if not self._is_there(threads):
                return None
            request = ForkRequest(dict(environment), path, pause, self._limits(threads))
            wire.send(self._sock, request, *fds, folder)
            kind, value = self._inbox.receive(self._sock)
        except (EOFError, OSError) as error:
            self.close()
            raise TemplateLost from error
        finally:
            os.close(folder)
        if kind == "failed":
            raise OSError(value, os.strerror(value))
        if kind == "refused":
            self.refused = value
            self.close()
            return None
        return ForkedProcess(value)

    def close(self) -> None:
        """End it."""
        if self._asked and self._process is None and not self.closed:
            with contextlib.suppress(EOFError, OSError):
                self._meet()  # who is not known cannot be waited for
        self.closed = True
        self._sock.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _is_there(self, threads: int) -> bool:
        """Wait until it is there; return False if it cannot make a worker with so many threads."""
        try:
            there = self._process is not None or self._meet()
        except (EOFError, OSError):  # it was ended, or does not answer
            there = False
        if not there:
            self.close()
        return there and (threads == self._threads or self._sets_blas)

    def _meet(self) -> bool:
        """Wait until it is there; return False if there will be none."""
        self._sock.settimeout(_ANSWERS_WITHIN)
        self.ask()
        answer = self._inbox.receive(self._sock)
        if answer[0] == "refused":
            self.refused, self.closed = answer[1], True
            return False
        _, pid, self._sets_blas = answer
        self._process = ForkedProcess(pid)
        return True

    def _limits(self, threads: int) -> dict[str, int]:
        """Return what a fork has to set by calls, as its libraries have read the variables of the first worker."""
        limits = {"OPENBLAS_NUM_THREADS": threads} if threads != 1 else {}
        if threads != self._threads:
            limits |= {"OMP_NUM_THREADS": threads, "ARROW_IO_THREADS": threads}
        return {name: number for name, number in limits.items() if name not in os.environ}


def circumstances() -> object:
    """Return what this thread hands down to processes that it starts, beside its environment, for comparison."""
    handed: list[object] = [tuple(sys.path), sys.executable, os.getpriority(os.PRIO_PROCESS, 0)]
    handed += [resource.getrlimit(limit) for limit in _LIMITS]
    for name in ("status", "cgroup", "oom_score_adj"):
        with contextlib.suppress(OSError), open(f"/proc/thread-self/{name}") as file:
            handed += [line for line in file if name != "status" or line.startswith(_OF_STATUS)]
    return handed
