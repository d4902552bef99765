"""The one thread of a pool: it waits on every worker's socket and output at once."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from typing import Any, Protocol

from millrace.engines import wire
from millrace.engines.process import Worker


class Crowd(Protocol):
    """Whom a listener listens to, and whom it tells."""

    stall_timeout: float

    def workers(self) -> list[Worker]:
        """The live workers."""
        ...

    def hear(self, worker: Worker, message: tuple[Any, ...]) -> None:
        """Take one message of a worker."""
        ...

    def bury(self, worker: Worker) -> None:
        """A worker is gone."""
        ...

    def give_up(self, reason: str) -> None:
        """Nothing more will be heard of anybody."""
        ...


class Listener:
    """Reads what workers send and print, until stopped."""

    def __init__(self, pool: Crowd) -> None:
        self._pool = pool
        self._wake_out, self._wake_in = os.pipe()
        self._stopped = False
        self._suspended: dict[int, float] = {}
        self._leaving: list[Worker] | None = []  # None: the thread has ended
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="millrace-pool", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        wire.start(self._thread)

    def stop(self) -> None:
        """End the thread; what was not read yet is left in the sockets."""
        self._stopped = True
        os.write(self._wake_in, b"x")
        self._thread.join()
        with self._lock:
            leaving, self._leaving = self._leaving, None
        for worker in leaving or ():
            worker.release()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def wake(self) -> None:
        """Look at the workers anew."""
        os.write(self._wake_in, b"w")

    def dismiss(self, worker: Worker) -> None:
        """Take leave of a worker whose process has ended; only here is it known that nobody waits on what it had."""
        with self._lock:
            if self._leaving is not None:
                self._leaving.append(worker)
                self.wake()
                return
        worker.release()

    def _run(self) -> None:
        try:
            self._listen()
        except OSError as error:
            self._pool.give_up(f"What workers send cannot be read any more: {error}.{wire.advice(error)}")
        except BaseException as error:  # whoever waits for an answer must learn that none will come
            self._pool.give_up(f"the thread that listens to the workers failed: {error!r}")
            raise

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ, None)
            known: set[int] = set()
            while not self._stopped:
                for worker in self._pool.workers():
                    if worker.number not in known:
                        known.add(worker.number)
                        self._attend(selector, worker)
                for key, _ in selector.select(self._pool.stall_timeout / 4):
                    self._serve(selector, key)
                self._end_suspended()
                self._release(selector)

    def _release(self, selector: selectors.BaseSelector) -> None:
        """Close what workers had that were dismissed."""
        with self._lock:
            leaving, self._leaving = self._leaving, []
        for worker in leaving or ():
            self._part(selector, worker)
            worker.release()

    def _attend(self, selector: selectors.BaseSelector, worker: Worker) -> None:
        ears: list[tuple[int, Any]] = [(worker.sock.fileno(), worker)]
        ears += [(relay.fileno(), (worker, relay)) for relay in worker.relays]
        if worker.pidfd >= 0:
            ears.append((worker.pidfd, worker))
        for fileno, data in ears:
            _forget(selector, fileno)  # its number may have been that of a worker that was let go
            selector.register(fileno, selectors.EVENT_READ, data)

    def _end_suspended(self) -> None:
        """End workers that the operating system stopped (SIGSTOP) and that nobody continued in time.

        A worker that computes is never ended here, however long it takes.
        """
        now = time.monotonic()
        for worker in self._pool.workers():
            silent = bool(worker.calls) and now - worker.heard >= self._pool.stall_timeout
            if not silent or not _is_suspended(worker.process.pid):
                self._suspended.pop(worker.number, None)
            elif now - self._suspended.setdefault(worker.number, now) >= self._pool.stall_timeout / 2:
                worker.process.kill()

    def _serve(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.fd not in selector.get_map():
            return  # its worker was buried a moment ago, by an event of the same round
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

    def _lose(self, selector: selectors.BaseSelector, worker: Worker) -> None:
        self._part(selector, worker)
        self._pool.bury(worker)

    def _part(self, selector: selectors.BaseSelector, worker: Worker) -> None:
        """Listen to a worker no more."""
        for fileno in (worker.sock.fileno(), worker.pidfd, *(relay.fileno() for relay in worker.relays)):
            _forget(selector, fileno)

    def _read(self, worker: Worker) -> bool:
        alive, messages = worker.inbox.read(worker.sock)
        worker.heard = time.monotonic()
        for message in messages:
            self._pool.hear(worker, message)
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
