"""Worker processes as the driver holds them, and the thread that listens to those of a pool."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

from headrace.core.process import hold_standard_streams
from headrace.engines.deaths import Death
from headrace.engines.local import wire
from headrace.engines.local.machine import oom_kills
from headrace.engines.local.orphans import Watcher, end_descendants
from headrace.engines.local.wire import Relay
from headrace.engines.pool import Message, WorkerHandle
from headrace.errors import EngineError, WorkerDied

if TYPE_CHECKING:
    from headrace.engines.local.forks import ForkedProcess

    Process = subprocess.Popen[bytes] | ForkedProcess


class WorkerProcess(WorkerHandle):
    """One process: its socket, its output, and the calls that it has not answered.

    ``visible`` are the GPUs that it was given.
    """

    _numbers = itertools.count()

    def __init__(self, start: Callable[[int, int, int], Process], watcher: Watcher) -> None:
        """``start`` is called with descriptors of the process: its end of the socket, its stdout and its stderr."""
        super().__init__(self.next_number())
        self.visible: tuple[str, ...] | None = None
        self.heard_at = time.monotonic()
        self.inbox = wire.Inbox()
        self._sending = threading.Lock()
        self._watcher = watcher
        self._oom_kills = oom_kills()
        hold_standard_streams()  # a socket by such a number would not reach the worker
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                self.sock, sock = socket.socketpair()
                ours.enter_context(self.sock)
                theirs.enter_context(sock)
                self.sock.setblocking(True)  # whatever socket.setdefaulttimeout says
                sock.setblocking(True)
                pipes = [_pipe(ours, theirs) for _ in range(2)]
                self.process = start(sock.fileno(), *(pipe[1] for pipe in pipes))
            except OSError as error:
                raise _not_started(error) from error
            self.relays = [Relay(pipes[0][0], "stdout"), Relay(pipes[1][0], "stderr")]
            ours.pop_all()
        self.pidfd = _pidfd(self.process.pid)

    @classmethod
    def next_number(cls) -> int:
        """Return a number that no other worker of this process has."""
        return next(cls._numbers)

    def send(self, message: Message, attached: int | None = None) -> None:
        """See ``WorkerHandle``: with a descriptor. If the worker is dead, the listener will find out."""
        try:
            with self._sending:
                wire.send(self.sock, message, *(() if attached is None else (attached,)))
        except ConnectionError:
            pass
        except OSError:
            self.process.kill()  # part of it may be on its way: nothing that follows could be read

    def add_call(self, number: int, future: Future[Any]) -> None:
        """See ``WorkerHandle``."""
        if not self.calls:
            self.heard_at = time.monotonic()
        super().add_call(number, future)

    def end(self, within: float = 0.0) -> None:
        """End the process, unless it ends within so many seconds; its descriptors stay open until ``release``."""
        self._wait(within)
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
        """See ``WorkerHandle``: with whatever the process started."""
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

    def death(self) -> Death:
        """Return how the process ended, with the last lines that it wrote to stderr."""
        code, out_of_memory = self.process.wait() or 0, None
        kills = oom_kills() if code == -signal.SIGKILL else None
        if kills is not None and self._oom_kills is not None:
            out_of_memory = kills > self._oom_kills
        unknown = code == 0 and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        return Death(self.process.pid, code, self.preparing, self.relays[1].tail(), out_of_memory, unknown)


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[IO[bytes], int]:
    """Open a pipe that is closed with ``ours`` at the end that is read, and with ``theirs`` at the other."""
    read, write = os.pipe()
    theirs.callback(os.close, write)
    return ours.enter_context(os.fdopen(read, "rb")), write


def _not_started(error: OSError) -> EngineError:
    return EngineError(f"A worker process could not be started: {error.strerror}.{wire.advice(error)}")


def _pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends, where the system has such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


# ---------------------------------------------------------------- listening

_LOOKS = 8  # at workers that are silent, in the time after which one that is stopped is given up


class Listener:
    """Reads what the workers of a ``LocalPool`` send and print, until stopped."""

    def __init__(self, pool: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._looked = clock()
        self._wake_out, self._wake_in = os.pipe()
        self._stopped = False
        self._suspended: dict[int, float] = {}
        self._dismissed: list[WorkerProcess] | None = []  # None: the thread has ended
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-pool", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        wire.start(self._thread)

    def stop(self) -> None:
        """End the thread; what was not read yet is left in the sockets."""
        self._stopped = True
        os.write(self._wake_in, b"x")
        self._thread.join()
        with self._lock:
            dismissed, self._dismissed = self._dismissed, None
        for worker in dismissed or ():
            worker.release()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def wake(self) -> None:
        """Have the thread look for new workers."""
        os.write(self._wake_in, b"w")

    def dismiss(self, worker: WorkerProcess) -> None:
        """Close the descriptors of a worker that has ended, once the thread does not wait for them any more."""
        with self._lock:
            if self._dismissed is not None:
                self._dismissed.append(worker)
                self.wake()
                return
        worker.release()

    def _run(self) -> None:
        try:
            self._listen()
        except OSError as error:
            self._pool.give_up(
                WorkerDied(f"Messages of workers cannot be read any more: {error}.{wire.advice(error)}")
            )
        except BaseException as error:  # whoever waits for an answer must learn that none will come
            self._pool.give_up(WorkerDied(f"the thread that listens to the workers failed: {error!r}"))
            raise

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ, None)
            known: set[int] = set()
            while not self._stopped:
                for worker in self._pool.workers():
                    if worker.number not in known:
                        known.add(worker.number)
                        self._register(selector, worker)
                wait = self._looked + self._pool.stall_timeout / _LOOKS - self._clock()
                for key, _ in selector.select(max(wait, 0.0)):
                    self._serve(selector, key)
                self.end_suspended()
                self._release(selector)

    def _release(self, selector: selectors.BaseSelector) -> None:
        """Close the descriptors of workers that were dismissed."""
        with self._lock:
            dismissed, self._dismissed = self._dismissed, []
        for worker in dismissed or ():
            self._unregister(selector, worker)
            worker.release()

    def _register(self, selector: selectors.BaseSelector, worker: WorkerProcess) -> None:
        inputs: list[tuple[int, Any]] = [(worker.sock.fileno(), worker)]
        inputs += [(relay.fileno(), (worker, relay)) for relay in worker.relays]
        if worker.pidfd >= 0:
            inputs.append((worker.pidfd, worker))
        for fileno, data in inputs:
            _forget(selector, fileno)  # its number may have been that of a worker that has gone
            selector.register(fileno, selectors.EVENT_READ, data)

    def end_suspended(self) -> None:
        """End workers that the operating system has stopped (SIGSTOP) and that were silent for ``stall_timeout``.

        One is seen stopped for half of that time first: where all was stopped, the driver included, it may go on a
        moment later than the driver. A worker that computes is never ended here, however long it takes.
        """
        now, timeout = self._clock(), self._pool.stall_timeout
        if now - self._looked < timeout / _LOOKS:  # messages wake the thread more often
            return
        self._looked = now
        for worker in self._pool.workers():
            silence = now - worker.heard_at if worker.calls or worker.preparing else 0.0
            if silence < timeout / _LOOKS or not _is_suspended(worker.process.pid):
                self._suspended.pop(worker.number, None)
            elif now - self._suspended.setdefault(worker.number, now) >= timeout / 2 and silence >= timeout:
                worker.kill_reason = (
                    f"it was stopped (SIGSTOP), and silent for {silence:.0f} s (stall_timeout)"
                )
                worker.process.kill()

    def _serve(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.fd not in selector.get_map():
            return  # its worker was removed a moment ago, by an event of the same round
        if key.data is None:
            os.read(self._wake_out, 4096)
        elif isinstance(key.data, tuple):
            if not key.data[1].pump():
                selector.unregister(key.fd)
        elif key.fd != key.data.pidfd and not self._read(key.data):
            self._lose(selector, key.data)
        elif key.fd == key.data.pidfd:  # dead, though a child of its own may hold the socket open
            key.data.sock.setblocking(False)
            while self._read(key.data):
                pass
            self._lose(selector, key.data)

    def _lose(self, selector: selectors.BaseSelector, worker: WorkerProcess) -> None:
        self._unregister(selector, worker)
        self._pool.remove_dead(worker)

    def _unregister(self, selector: selectors.BaseSelector, worker: WorkerProcess) -> None:
        """Wait for nothing of a worker any more."""
        for fileno in (worker.sock.fileno(), worker.pidfd, *(relay.fileno() for relay in worker.relays)):
            _forget(selector, fileno)

    def _read(self, worker: WorkerProcess) -> bool:
        alive, messages = worker.inbox.read(worker.sock)
        worker.heard_at = time.monotonic()
        for message in messages:
            self._pool.on_message(worker, message)
        return alive


def _is_suspended(pid: int) -> bool:
    import psutil  # needed only when a worker has been silent for long

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _forget(selector: selectors.BaseSelector, fileno: int) -> None:
    with contextlib.suppress(KeyError, ValueError):
        selector.unregister(fileno)
