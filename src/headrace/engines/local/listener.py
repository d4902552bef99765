"""The one thread of a pool: it waits on every worker's socket and output at once."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from headrace.engines.local import wire
from headrace.engines.local.process import WorkerProcess
from headrace.errors import HeadraceError, WorkerDied

_LOOKS = 8  # at workers that are silent, in the time after which one that is stopped is given up


class ListeningPool(Protocol):
    """What a listener needs of its pool."""

    stall_timeout: float

    def workers(self) -> list[WorkerProcess]:
        """The live workers."""
        ...

    def on_message(self, worker: WorkerProcess, message: tuple[Any, ...]) -> None:
        """Handle a message of a worker."""
        ...

    def remove_dead(self, worker: WorkerProcess) -> None:
        """A worker is gone."""
        ...

    def give_up(self, error: HeadraceError) -> None:
        """No more messages will come."""
        ...


class Listener:
    """Reads what workers send and print, until stopped."""

    def __init__(self, pool: ListeningPool, clock: Callable[[], float] = time.monotonic) -> None:
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
