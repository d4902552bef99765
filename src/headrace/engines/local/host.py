"""The main of a worker process: its driver is at the other end of a socket.

Messages in: ``("host", context, visible, packed)`` once, where ``visible`` are the GPUs to see and ``packed`` is an
``OutOfBandPickle``, with a descriptor perhaps, wherever it comes; ``("call", id, method, args)``, maybe with
messages of values that it needs; ``("end",)``; and, served at once by the thread that listens,
``("feed", args)``, ``("slot", owner, slot)`` with the descriptor of a slot that will be read, ``("unmap", owner,
slot)`` when it will not be any more, ``("free", slot)`` for a slot of our own, ``("return slot", slot)`` for one too
many, ``("value", number, packed)``, ``("forget", number)``. Messages out: ``("preparing", what)`` before
the worker can work, ``("preparing", "")`` once it can; ``("result", id, value)``, where ``value`` may be packed;
``("error", id, exception)``, ``("note", value)`` and ``("note", value, packed)``, ``("slot", slot)`` with its
descriptor, ``("block", ref)`` of a block in one, ``("slot returned", slot, returned)``, ``("released", numbers)`` of
blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.engine_ports import WorkerContext
from headrace.core.process import become_worker, flush_streams
from headrace.core.terminal import say
from headrace.core.work import BlockRef
from headrace.engines.deaths import CANNOT_BEGIN
from headrace.engines.local import template, wire
from headrace.engines.local.orphans import die_with, end_descendants
from headrace.engines.out_of_band_pickle import KeptPickle, unpack
from headrace.engines.references import OutOfBandPickle, WorkerCache
from headrace.engines.worker_loop import WorkerLoop
from headrace.errors import EngineError

if TYPE_CHECKING:
    import pyarrow as pa

_TRIM_EVERY = 0.5  # seconds


def main(
    fd: int, parent: int, pause: float, *, modules: tuple[str, ...], control: int = -1, blas: int = 0
) -> None:
    """Serve the driver at the other end of socket ``fd`` until it says so or is gone, after ``pause`` seconds.

    ``modules`` are imported first. With ``control``, this process may be asked to make others by fork, by the socket
    of that number; see ``template``. ``blas``: numpy's BLAS was loaded for one thread, and shall have so many.
    """
    die_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the driver was started with
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it hides how what the user starts has ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Batches are read-only by design, and copies where torch is; torch.from_numpy would warn about each.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
    faulthandler.enable(all_threads=False)  # a crash in native code says where it was
    faulthandler.register(signal.SIGUSR1)  # when asked, every thread does
    if control >= 0:
        template.import_all(modules)
        fd, pause = template.stand_by(fd, control, parent, blas)
    become_worker()
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    os.register_at_fork(after_in_child=sock.close)  # a child must not look like us to the driver
    SocketTransport(sock).serve(pause, modules)


class SocketTransport:
    """The worker's end of the socket; see ``Transport``."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._inbox = wire.Inbox()
        self._loop = WorkerLoop(self)
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._number = -1
        self._slots: Any = None  # made when needed: it imports Arrow
        self._mapping: Any = None
        self._cache = WorkerCache()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._trimmed = time.monotonic()

    def serve(self, pause: float, modules: tuple[str, ...]) -> None:
        """Do what is asked, then end this process."""
        try:
            wire.start(threading.Thread(target=self._listen, name="headrace-listen", daemon=True))
        except EngineError as error:  # the driver reads it, as the last words
            say(f"{CANNOT_BEGIN}: {error}", sys.stderr)
            os._exit(1)
        if not (pause and self._ended.wait(pause)):
            template.import_all(modules)  # while the driver still plans
            self._loop.run()
        try:
            self._loop.close()
            flush_streams()
            end_descendants(os.getpid())
        finally:
            # Interpreters full of native libraries are slow to take down, and nothing is left to save.
            os._exit(0)

    # ------------------------------------------------------------ from the driver

    def _listen(self) -> None:
        try:
            while True:
                try:
                    message = self._inbox.receive(self._sock)
                except (EOFError, ConnectionError):
                    os._exit(1)  # the driver is gone; nobody is left to work for
                self._on_message(message)
        except BaseException as error:  # without this thread, the process could only hang
            _print_fatal(error)
            os._exit(1)

    def _on_message(self, message: tuple[Any, ...]) -> None:
        """Serve a message. This thread sends nothing: it must never wait for the driver to read."""
        kind = message[0]
        if kind == "call" and len(message) > 4:
            for value in message[4]:
                self._on_message(value)
            self._loop.inbox.put(message[:4])
        elif kind == "feed":
            self._loop.feed(message[1])
        elif kind == "slot":
            self._slots_of_others().map(*message[1:], self._inbox.fds.popleft())
        elif kind == "unmap":
            self._slots_of_others().unmap(*message[1:])
        elif kind == "value":
            _, number, packed = message
            self._cache.add(number, packed.links, KeptPickle(packed))
        elif kind == "forget":
            self._cache.forget(message[1])
        elif kind == "free":
            self._slots.free(message[1])
        elif kind == "return slot":
            self._slots.return_slot(message[1])
            self._loop.inbox.put(("release_unused",))
        else:
            if kind == "end":
                self._ended.set()
            self._loop.inbox.put(message)

    def prepare(self, *args: Any) -> tuple[WorkerContext, Callable[[], Any]]:
        """See ``Transport``."""
        make_context, visible, packed = args
        if visible is not None:  # CUDA looks once, when the first library that uses it is imported or asks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        context: WorkerContext = make_context(
            self._note,
            self._share,
            self._take,
            self.send_released,
            self._preparing,
            value=self._cache.value,
            line=self,
        )
        self._number = context.worker
        return context, lambda: self._cache.resolved(packed.links, lambda: unpack(packed))

    # ------------------------------------------------------------ see ``DriverLine``

    def holder(self, number: int) -> Any:
        """See ``DriverLine``."""
        return self._cache.holder(number)

    def stand_in(self, make: Callable[[int], Any]) -> None:
        """See ``DriverLine``."""
        self._cache.stand_in = make

    def note_packed(self, note: Any, packed: OutOfBandPickle) -> None:
        """See ``DriverLine``."""
        self._send(("note", note, packed))

    # ------------------------------------------------------------ blocks

    def _share(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        if self._slots is None:
            from headrace.engines.local.slots import SlotAllocator

            self._slots = SlotAllocator(self._number, self._announce)
        ref: BlockRef = self._slots.write(schema, batches)
        self._send(("block", ref))
        return ref

    def _announce(self, slot: int, fd: int) -> None:
        with self._sending:
            wire.send(self._sock, ("slot", slot), fd)
        os.close(fd)

    def _slots_of_others(self) -> Any:
        if self._mapping is None:
            from headrace.engines.local.slots import SlotMapping

            self._mapping = SlotMapping()
        return self._mapping

    def _take(self, ref: BlockRef) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = self._slots_of_others().read(ref)
        return batches

    def send_released(self) -> None:
        """See ``Transport``; and send which slots were returned."""
        if self._slots is not None:
            for slot, returned in self._slots.returned():
                self._send(("slot returned", slot, returned))
        if self._mapping is not None and self._mapping.released:
            self._send(("released", self._mapping.drain_released()))

    # ------------------------------------------------------------ to the driver

    def send_result(self, number: int, value: Any) -> None:
        """See ``Transport``."""
        self._send(("result", number, value))
        self._trim_freed()

    def send_error(self, number: int, error: BaseException) -> None:
        """See ``Transport``."""
        self._send(("error", number, error))
        self._trim_freed()

    def _trim_freed(self) -> None:
        """Return freed memory to the system, now and then: glibc keeps it, up to twice what is in use."""
        if self._trim is not None and time.monotonic() - self._trimmed >= _TRIM_EVERY:
            self._trim(0)
            self._trimmed = time.monotonic()

    def _preparing(self, what: str) -> None:
        self._send(("preparing", what))

    def _note(self, value: Any) -> None:
        self._send(("note", value))

    def _send(self, message: tuple[Any, ...]) -> None:
        """Send a message, and close what is packed in it."""
        try:
            with self._sending:
                wire.send(self._sock, message)
            if isinstance(message[-1], OutOfBandPickle):
                message[-1].close()
        except ConnectionError:
            os._exit(1)  # the driver is gone
        except OSError as error:  # part of it may be on its way
            _print_fatal(error, "send a message to its driver")
            os._exit(1)


def _print_fatal(error: BaseException, task: str = "read a message from its driver") -> None:
    """Write what ends this process to stderr, where the driver reads it."""
    with contextlib.suppress(Exception):
        if isinstance(error, OSError):
            say(f"This worker could not {task}: {error}.{wire.advice(error)}", sys.stderr)
        else:
            say("".join(traceback.format_exception(error)), sys.stderr, end="")
