"""The main of a worker process: it hosts one object and calls its methods, one after another, as asked.

Messages in: ``("host", context, visible, pickled, places)`` once, maybe with a descriptor, where ``visible`` are
the GPUs to see; ``("call", id, method, args)``; ``("end",)``; and, served at once by the thread that listens,
``("feed", args)``, ``("slot", owner, slot)`` with the descriptor of a slot that will be read, ``("unmap", owner,
slot)`` when it will not be any more, ``("free", slot)`` for a slot of our own, ``("give back", slot)`` for one too
many, ``("value", number, pickled, places, links)`` with a descriptor perhaps, ``("forget", number)``. Messages out:
``("preparing", what)`` before the worker can work, ``("preparing", "")`` once it can; ``("result", id, value)``,
``("parcel", id, pickled, places, links, filed)`` with a descriptor if ``filed``, ``("error", id, exception)``,
``("note", value)``, ``("slot", slot)`` with its descriptor, ``("laid", ref)`` of a block in one,
``("given back", slot, given)``, ``("unread", numbers)`` of blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from millrace.core.process import become_worker
from millrace.core.work import BlockRef
from millrace.engines import wire
from millrace.engines.descendants import end_descendants
from millrace.engines.locker import Locker
from millrace.engines.parcel import Lent, Parcel, unpack
from millrace.errors import MillraceError, NotPicklable
from millrace.screen import say

if TYPE_CHECKING:
    import pyarrow as pa

_PR_SET_PDEATHSIG = 1
_TRIM_EVERY = 0.5  # seconds


def main(fd: int, parent: int, pause: float) -> None:
    """Serve the driver at the other end of socket ``fd`` until it says so or is gone, after ``pause`` seconds."""
    _die_with(parent)
    become_worker()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the driver was started with
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it hides how what the user starts has ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Batches are read-only by design, and copies where torch is; torch.from_numpy would warn about each.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
    faulthandler.enable(all_threads=False)  # a crash in native code says where it was
    faulthandler.register(signal.SIGUSR1)  # when asked, every thread does
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    os.register_at_fork(after_in_child=sock.close)  # a child must not look like us to the driver
    Host(sock).serve(pause)


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process when the driver ends, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


class Host:
    """One worker's side of the conversation."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._calls: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._hosted: Any = None
        self._number = -1
        self._shelf: Any = None
        self._reading: Any = None
        self._locker = Locker()
        self._fed: list[tuple[Any, ...]] = []  # what came before there was anybody to take it
        self._feeding = threading.Lock()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._trimmed = time.monotonic()

    def serve(self, pause: float) -> None:
        """Do what is asked, until the end."""
        threading.Thread(target=self._listen, name="millrace-listen", daemon=True).start()
        if pause and self._ended.wait(pause):
            self._end()
        _preload()
        while True:
            message, fd = self._calls.get()
            if message[0] == "host":
                self._take_in(message, fd)
                self._preparing("")
            elif message[0] == "call":
                self._call(*message[1:])
                self._give_back()
            elif message[0] == "tidy":
                self._tidy()
            else:
                self._end()

    def _listen(self) -> None:
        try:
            while True:
                try:
                    message, fd = wire.receive(self._sock)
                except (EOFError, ConnectionError):
                    os._exit(1)  # the driver is gone; nobody is left to work for
                if message[0] == "feed":
                    self._feed(message[1])
                elif message[0] == "slot":
                    self._slots_of_others().map(*message[1:], fd)
                elif message[0] == "unmap":
                    self._slots_of_others().unmap(*message[1:])
                elif message[0] == "value":
                    _, lent, pickled, places, links = message
                    self._locker.add(lent, links, Lent(pickled, places, fd))
                elif message[0] == "forget":
                    self._locker.forget(message[1])
                elif message[0] == "free":
                    self._shelf.free(message[1])
                elif message[0] == "give back":
                    self._shelf.give_back(message[1])
                    self._calls.put((("tidy",), -1))  # this thread sends nothing: who listens never waits
                else:
                    if message[0] == "end":
                        self._ended.set()
                    self._calls.put((message, fd))
        except BaseException as error:  # deaf, it could only hang
            _say_last(error)
            os._exit(1)

    def _take_in(self, message: tuple[Any, ...], fd: int) -> None:
        _, context, visible, pickled, places = message
        hosted: Any
        if visible is not None:  # CUDA looks once, when the first library that uses it is imported or asks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        self._preparing("importing what the plan's functions need")
        try:
            factory = made_again(lambda: unpack(pickled, places, fd))
            made = context(
                self._note,
                self._share,
                self._take,
                self._tidy,
                self._preparing,
                value=self._locker.value,
            )
            self._number = made.worker
            hosted = factory(made)
        except BaseException as error:
            hosted = _Broken(error)
        with self._feeding:
            self._hosted = hosted
            for args in self._fed:
                self._feed_now(args)
            self._fed.clear()

    def _feed(self, args: tuple[Any, ...]) -> None:
        with self._feeding:
            if self._hosted is None:
                self._fed.append(args)
            else:
                self._feed_now(args)

    def _feed_now(self, args: tuple[Any, ...]) -> None:
        if not isinstance(self._hosted, _Broken):
            self._hosted.feed(*args)

    # ------------------------------------------------------------ blocks

    def _share(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        if self._shelf is None:
            from millrace.engines.slots import Shelf

            self._shelf = Shelf(self._number, self._announce)
        ref: BlockRef = self._shelf.lay(schema, batches)
        self._send(("laid", ref))
        return ref

    def _announce(self, slot: int, fd: int) -> None:
        with self._sending:
            wire.send(self._sock, ("slot", slot), fd)
        os.close(fd)

    def _slots_of_others(self) -> Any:
        if self._reading is None:
            from millrace.engines.slots import Reading

            self._reading = Reading()
        return self._reading

    def _take(self, ref: BlockRef) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = self._slots_of_others().read(ref)
        return batches

    def _tidy(self) -> None:
        """Tell which blocks nobody here looks at any more, and which slots were given back."""
        if self._shelf is not None:
            for answer in self._shelf.answers():
                self._send(("given back", *answer))
        if self._reading is not None and self._reading.unread:
            self._send(("unread", self._reading.taken_leave()))

    # ------------------------------------------------------------ calls

    def _call(self, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            result = getattr(self._hosted, method)(*args)
        except BaseException as error:
            self._answer("error", number, error)
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda future: self._answer_later(number, future))
        else:
            self._answer("result", number, result)

    def _give_back(self) -> None:
        """Return freed memory to the system, now and then: glibc keeps it, up to twice what is in use."""
        if self._trim is not None and time.monotonic() - self._trimmed >= _TRIM_EVERY:
            self._trim(0)
            self._trimmed = time.monotonic()

    def _answer_later(self, number: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self._answer("error", number, error)
        else:
            self._answer("result", number, future.result())

    def _answer(self, kind: str, number: int, value: Any) -> None:
        _flush()
        self._tidy()
        if kind == "error":
            value = portable(value)
        if isinstance(value, Parcel):
            self._send_parcel(number, value)
        else:
            self._send((kind, number, value))

    def _send_parcel(self, number: int, parcel: Parcel) -> None:
        message = ("parcel", number, parcel.pickled, parcel.places, parcel.links, parcel.fd >= 0)
        self._send(message, parcel.fd)
        parcel.close()

    def _preparing(self, what: str) -> None:
        self._send(("preparing", what))

    def _note(self, value: Any) -> None:
        self._send(("note", value))

    def _send(self, message: Any, fd: int = -1) -> None:
        try:
            with self._sending:
                wire.send(self._sock, message, fd)
        except ConnectionError:
            os._exit(1)  # the driver is gone
        except OSError as error:  # part of it may be on its way
            _say_last(error, "send to its driver what it should")
            os._exit(1)

    def _end(self) -> None:
        try:
            close = getattr(self._hosted, "close", None)
            if close is not None:
                close()
            _flush()
            end_descendants(os.getpid())
        finally:
            # Interpreters full of native libraries are slow to take down, and nothing is left to save.
            os._exit(0)


def _say_last(error: BaseException, task: str = "take in what its driver sent") -> None:
    """Write what ends this process where the driver finds it."""
    with contextlib.suppress(Exception):
        if isinstance(error, OSError):
            say(f"This worker could not {task}: {error}.{wire.advice(error)}", sys.stderr)
        else:
            say("".join(traceback.format_exception(error)), sys.stderr, end="")


def made_again(load: Callable[[], Any]) -> Any:
    """Unpickle what the plan needs; if the user's own things refuse, say that in words."""
    try:
        return load()
    except (MillraceError, AttributeError, ImportError, MemoryError, OSError):
        raise
    except Exception as error:
        raise NotPicklable(
            "Something that the plan's functions use can be pickled, but not made again in a worker: "
            f"{type(error).__name__}: {error}. Make it inside the function, or in the constructor of a class, "
            "which runs in the worker; or use with_options(engine='inline')."
        ) from error


class _Broken:
    """Stands in for an object that could not be made: every call tells why."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _flush() -> None:
    """Hand on what the user's code printed, whatever it has put in the place of the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def portable(error: BaseException) -> BaseException:
    """Return the error if it survives pickling, else one that carries its words."""
    try:
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error):
            return error
    except Exception:
        pass
    return RuntimeError("".join(traceback.format_exception(error)))


def _preload() -> None:
    """Import what every program needs while the driver still plans."""
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401
