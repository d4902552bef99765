"""One worker process, as the driver holds it."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from millrace.core.process import hold_standard_streams
from millrace.engines import wire
from millrace.engines.cgroups import oom_kills
from millrace.engines.descendants import end_descendants
from millrace.engines.orphans import Watcher
from millrace.engines.output import Relay
from millrace.errors import EngineError

_BOOT = (
    "import sys; sys.path[:] = {path!r}; from millrace.engines.host import main; main({fd}, {pid}, {pause})"
)
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "ARROW_IO_THREADS",
)
# Arrow's default, mimalloc, keeps 40 to 100 MiB per worker that nobody uses. The system's allocator gives them
# back; with glibc's own thresholds it maps every batch anew, and a job that only moves data is 4 % slower.
_ALLOCATOR = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
_END_WITHIN = 10.0


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker process ended: its exit status or, below zero, the signal; what it was preparing, if anything.

    ``starved``: the kernel ended it because memory ran out; None if nobody knows. ``untold``: the system tells no
    exit status, as the program ignores SIGCHLD.
    """

    pid: int
    code: int
    preparing: str
    last_words: str
    starved: bool | None = None
    untold: bool = False

    def __str__(self) -> str:
        words = f"; its last words: {self.last_words}" if self.last_words else ""
        return f"worker process {self.pid} {'was ' if self.code < 0 else ''}{self.way}{self._by_whom}{words}"

    @property
    def _by_whom(self) -> str:
        if self.code != -signal.SIGKILL:
            return ""
        if self.starved is None:
            return " (by the kernel, if memory ran out)"
        return " (by the kernel, because memory ran out)" if self.starved else " (from outside)"

    @property
    def way(self) -> str:
        """The signal or the exit status in words, and what it was preparing."""
        if self.untold:
            way = "ended in a way that nobody knows (the program ignores SIGCHLD)"
        elif self.code >= 0:
            way = f"exited with status {self.code}"
        elif -self.code in set(signal.Signals):
            way = f"killed by {signal.Signals(-self.code).name}"
        else:
            way = f"killed by signal {-self.code}"
        return f"{way} while {self.preparing}" if self.preparing else way


def never_ready(pool: str, deaths: Sequence[Death]) -> str:
    """Say that workers of a pool ended, one after another, before any of them could work."""
    ways = Counter(death.way for death in deaths)
    told = "; ".join(way if count == 1 else f"{way} ({count} times)" for way, count in ways.items())
    words = f" The last one's last words: {deaths[-1].last_words}." if deaths[-1].last_words else ""
    if any(death.starved for death in deaths):
        advice = (
            "The kernel ended them because memory ran out. Let fewer workers share it (workers=, concurrency=), or "
            "use a machine with more."
        )
    elif any(death.code in (-signal.SIGKILL, -signal.SIGTERM) for death in deaths):
        advice = (
            "Somebody outside ended them; the kernel does if memory runs out, and `dmesg` tells. Then let fewer "
            "workers share the memory (workers=, concurrency=), or use a machine with more."
        )
    else:
        advice = "Something there takes the process down: try it in a Python process of its own to see what."
    return f"{len(deaths)} workers of {pool} in a row ended before they could work: {told}.{words} {advice}"


class Worker:
    """One process: its socket, its output, and the calls that it has not answered."""

    _numbers = iter(range(1 << 62))

    def __init__(self, threads: int, pause: float, watcher: Watcher) -> None:
        """``pause``: seconds that the process waits before it imports anything big."""
        self.number = next(self._numbers)
        self.calls: dict[int, Future[Any]] = {}
        self.sentence = ""  # why it was ended, if we did it
        self.preparing = "starting"  # what it does before it can work; empty if it can
        self.born = 0  # after how many rounds of deaths
        self.visible: tuple[str, ...] | None = None  # the GPUs that it was given
        self.heard = time.monotonic()
        self.inbox = wire.Inbox()
        self._sending = threading.Lock()
        self._watcher = watcher
        self._oom_kills = oom_kills()
        hold_standard_streams()  # a socket by such a number would not reach the worker
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _not_started(error) from error
        ours.setblocking(True)  # whatever socket.setdefaulttimeout says
        theirs.setblocking(True)
        environment = {name: str(threads) for name in _THREADS} | _ALLOCATOR | dict(os.environ)
        boot = _BOOT.format(path=sys.path, fd=theirs.fileno(), pid=os.getpid(), pause=pause)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", boot],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # it leads a group, which ends with it; Ctrl-C comes to the driver only
            )
        except OSError as error:
            ours.close()
            raise _not_started(error) from error
        finally:
            theirs.close()
        self.sock = ours
        self.pidfd = _pidfd(self.process.pid)
        self.relays = [Relay(self.process.stdout, "stdout"), Relay(self.process.stderr, "stderr")]

    def send(self, message: Any, fd: int = -1) -> None:
        """Send a message, from any thread. If the worker is dead, the listener will say so to whom it concerns."""
        try:
            with self._sending:
                wire.send(self.sock, message, fd)
        except ConnectionError:
            pass
        except OSError:
            self.process.kill()  # part of it may be on its way: nothing that follows could be read

    def end(self, *, kill: bool) -> None:
        """Ask the process to end, or end it; then wait for it. What we have of it stays open until ``release``."""
        if not kill:
            self.send(("end",))
            self._wait(_END_WITHIN)
        self.kill()
        self.process.wait()

    def _wait(self, seconds: float) -> None:
        """Wait for the end of the process, but leave its number taken where that is possible: it names the group."""
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            poll.poll(seconds * 1000)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """End the process and whatever it started."""
        if self.process.returncode is None:  # its number is its own until we have asked how it ended
            end_descendants(self.process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def release(self) -> None:
        """Pass on the last output and close all descriptors."""
        self._watcher.remove(self.process.pid)
        while self.inbox.fds:
            os.close(self.inbox.fds.popleft())
        for relay in self.relays:
            relay.finish()
        self.sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def way_of_death(self) -> Death:
        """Say how the process ended, with the last lines that it wrote to stderr."""
        code, starved = self.process.wait(), None
        kills = oom_kills() if code == -signal.SIGKILL else None
        if kills is not None and self._oom_kills is not None:
            starved = kills > self._oom_kills
        untold = code == 0 and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        return Death(self.process.pid, code, self.preparing, self.relays[1].tail(), starved, untold)


def _not_started(error: OSError) -> EngineError:
    return EngineError(f"A worker process could not be started: {error.strerror}.{wire.advice(error)}")


class Spawner:
    """Starts worker processes in one thread, which lives until ``close``.

    A process that asked to die with its parent dies with the *thread* that started it. Threads of the user's come
    and go.
    """

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[Future[Worker], int, float] | None] = queue.SimpleQueue()
        self._watcher = Watcher()
        self._thread = threading.Thread(target=self._run, name="millrace-spawn", daemon=True)
        wire.start(self._thread)

    def worker(self, threads: int, pause: float = 0.0) -> Worker:
        """Start a process, from any thread."""
        future: Future[Worker] = Future()
        self._wanted.put((future, threads, pause))
        return future.result()

    def close(self) -> None:
        """End the thread, and with it, where the kernel sees to it, every process that is left."""
        self._wanted.put(None)
        self._thread.join()
        self._watcher.close()

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            future, threads, pause = wanted
            try:
                worker = Worker(threads, pause, self._watcher)
            except BaseException as error:
                future.set_exception(error)
            else:
                self._watcher.add(worker.process.pid)
                future.set_result(worker)
                self._watcher.start()
                del worker
            del wanted, future  # who waits for the next one holds no worker


def _pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends, where the system has such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
