"""What lives in an actor: it hosts one object and calls its methods, one after another, as the driver asks.

The conversation is that of ``millrace.engines.host``, by other means. The driver calls ``send`` with a message and
the objects of the blocks that it speaks of; what the worker has to tell waits until the driver asks, by ``poll``,
so notes and answers keep their order. A block that was laid is the second result of a ``poll``: so its owner
is the driver, and it stays when the worker ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from millrace.core.ports import WorkerContext
from millrace.core.process import become_worker
from millrace.core.work import BlockRef, Calling
from millrace.engines.host import made_again, portable
from millrace.engines.locker import Locker
from millrace.engines.parcel import SMALL, Parcel
from millrace.engines.ray.mapped import private
from millrace.errors import NodeLost
from millrace.screen import say
from millrace.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE = 10.0  # seconds that a poll waits for something to tell
MOST = 1_000  # messages at a time
SIGHT = 10.0  # seconds until a file that another machine wrote must be seen here


class Place(Protocol):
    """What a worker asks of the machine that it is on."""

    def fetch(self, held: Any) -> Any:
        """Return what an object of the store is; raises ``NodeLost`` if it is lost."""
        ...

    def prefetch(self, held: Any) -> None:
        """Have an object brought to this machine."""
        ...

    def devices(self) -> tuple[str, ...]:
        """Return the GPUs that this worker was given."""
        ...

    def name(self) -> str:
        """Return the address of the machine."""
        ...

    def node(self) -> str:
        """Return what Ray calls it."""
        ...


class RayHost:
    """One worker's side of the conversation."""

    def __init__(
        self,
        place: Place,
        number: int,
        threads: int,
        path: Sequence[str],
        sees: str,
        pause: float,
        parcel: tuple[Any, Any],
    ) -> None:
        self._place = place
        self._number = number
        self._threads = threads
        self._outbox: deque[tuple[tuple[Any, ...], Any]] = deque()
        self._news = threading.Condition()
        self._told = self._handed = self._heard = 0  # messages: put out, given to a poll, known to the driver
        self._inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._early: dict[int, tuple[Any, ...]] = {}  # messages that overtook others
        self._next = 0
        self._objects: dict[int, list[Any]] = {}
        self._unread: deque[int] = deque()
        self._locker = Locker()
        self._feeding = threading.Lock()
        self._fed: list[tuple[Any, ...]] = []
        self._hosted: Any = None
        self._laid = 0
        self._ended = threading.Event()
        become_worker()
        known = set(sys.path)
        sys.path.extend(each for each in path if each not in known)
        with contextlib.suppress(ValueError):  # where this is not the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        self._tell("here", __version__, os.getpid(), self._place.name(), self._place.node())
        thread = threading.Thread(
            target=self._work, args=(parcel, sees, pause), name="millrace-work", daemon=True
        )
        thread.start()

    # ------------------------------------------------------------ what the driver calls

    def send(self, number: int, message: tuple[Any, ...], objects: Mapping[int, Any]) -> None:
        """Take a message; they are served in the order of their numbers."""
        for block, held in objects.items():
            self._objects.setdefault(block, []).append(held)
        self._early[number] = message
        while self._next in self._early:
            self._serve(self._early.pop(self._next))
            self._next += 1
        for held in objects.values():
            self._place.prefetch(held)

    def poll(self) -> tuple[list[tuple[Any, ...]], Any]:
        """Return what there is to tell, up to the first block, and that block; wait a little if there is nothing."""
        with self._news:
            self._heard = self._handed  # who asks again has the answer before
            self._news.notify_all()
            self._news.wait_for(lambda: self._outbox, PATIENCE)
            told: list[tuple[Any, ...]] = []
            while self._outbox and len(told) < MOST:
                message, block = self._outbox.popleft()
                self._handed += 1
                told.append(message)
                if block is not None:
                    return told, block
            return told, None

    def end(self) -> None:
        """Close what is hosted, after the calls before this."""
        self._inbox.put(("end",))
        self._ended.wait()

    # ------------------------------------------------------------ messages

    def _serve(self, message: tuple[Any, ...]) -> None:
        if message[0] == "feed":
            self._feed(message[1])
        elif message[0] == "value":
            self._lend(*message[1:])
        elif message[0] == "forget":
            self._locker.forget(message[1])
        elif message[0] == "dump":
            say(f"worker {self._number}, process {os.getpid()}:", sys.stderr)
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
        else:
            self._inbox.put(message)

    def _work(self, parcel: tuple[Any, Any], sees: str, pause: float) -> None:
        try:
            if pause:
                time.sleep(pause)
            self._begin(parcel, sees)
            while (message := self._inbox.get())[0] != "end":
                self._call(*message[1:])
            close = getattr(self._hosted, "close", None)
            if close is not None:
                close()
        except BaseException as error:  # deaf, it could only hang
            say("".join(traceback.format_exception(error)), sys.stderr, end="")
            os._exit(1)
        self._ended.set()

    def _begin(self, parcel: tuple[Any, Any], sees: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        pa.set_memory_pool(pa.system_memory_pool())  # see _ALLOCATOR in process.py
        if sees and not _is_seen(sees):
            self._tell("blind", sees, self._place.name())
        self._tell_first("preparing", "importing what the plan's functions need")
        hosted: Any
        try:
            factory = made_again(lambda: pickle.loads(parcel[0], buffers=private(parcel[1])))
            hosted = factory(
                WorkerContext(
                    self._number,
                    self._threads,
                    self._note,
                    self._share,
                    self._take,
                    self._tidy,
                    lambda what: self._tell_first("preparing", what),
                    self._place.devices(),
                    self._locker.value,
                )
            )
        except BaseException as error:
            hosted = _Broken(error)
        with self._feeding:
            self._hosted = hosted
            for args in self._fed:
                self._feed_now(args)
            self._fed.clear()
        self._tell_first("preparing", "")

    def _feed(self, args: tuple[Any, ...]) -> None:
        with self._feeding:
            if self._hosted is None:
                self._fed.append(args)
            else:
                self._feed_now(args)

    def _feed_now(self, args: tuple[Any, ...]) -> None:
        if not isinstance(self._hosted, _Broken):
            self._hosted.feed(*args)

    def _call(self, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            result = getattr(self._hosted, method)(*args)
        except BaseException as error:
            self._answer("error", number, portable(error))
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda done: self._answer_later(number, done))
        else:
            self._answer("result", number, result)

    def _answer_later(self, number: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self._answer("error", number, portable(error))
        else:
            self._answer("result", number, future.result())

    def _answer(self, kind: str, number: int, value: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._tidy()
        if isinstance(value, Parcel):
            self._answer_with(number, value)
            return
        # Pickled here: what fails to come to life in the driver is that call's error, not the end of this worker.
        try:
            pickled = pickle.dumps(value, protocol=5)
        except Exception as error:
            kind, pickled = "error", pickle.dumps(portable(error))
        self._tell(kind, number, pickled)

    def _answer_with(self, number: int, parcel: Parcel) -> None:
        """Return a value of an executor: in the message if it is small, else beside it, as a block would come."""
        size = len(parcel.pickled) + sum(size for _, size in parcel.places)
        if size <= SMALL:
            self._tell("parcel", number, parcel.pickled, size, parcel.links)
            parcel.close()
            return
        view = memoryview(mmap.mmap(parcel.fd, 0, prot=mmap.PROT_READ)) if parcel.fd >= 0 else memoryview(b"")
        parcel.close()
        buffers = [np.frombuffer(view[at : at + size], np.uint8) for at, size in parcel.places]
        self._tell("parcel", number, b"", size, parcel.links, block=(parcel.pickled, buffers))

    def _lend(self, number: int, pickled: bytes, links: Sequence[int]) -> None:
        """Take in a value that the driver keeps."""
        held = self._objects.pop(number, None)
        self._locker.add(number, links, _Lent(self._place, pickled, None if held is None else held[0]))

    def _tell(self, *message: Any, block: Any = None) -> None:
        with self._news:
            self._outbox.append((message, block))
            self._told += 1
            self._news.notify_all()

    def _tell_first(self, *message: Any) -> None:
        """Tell what the driver must know in case that what comes next ends this process."""
        self._tell(*message)
        with self._news:
            last = self._told
            self._news.wait_for(lambda: self._heard >= last, PATIENCE)

    def _note(self, note: Any) -> None:
        if isinstance(note, Calling):
            self._tell_first("note", note)
        else:
            self._tell("note", note)

    # ------------------------------------------------------------ blocks

    def _share(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        block = sink.getvalue()
        self._laid += 1
        ref = BlockRef(self._number, 0, block.size, (self._number << 32) + self._laid, block.size)
        self._tell("laid", ref, block=block)
        return ref

    def _take(self, ref: BlockRef) -> list[pa.RecordBatch]:
        import pyarrow as pa

        try:
            lent = self._objects.get(ref.number)
            if not lent:
                raise NodeLost("a block was lost")
            held = lent.pop()
            if not lent:
                del self._objects[ref.number]
            view = np.frombuffer(self._place.fetch(held), np.uint8)
        except NodeLost:
            self._unread.append(ref.number)
            raise
        # Runs in whatever thread lets go last, maybe amid anything: it may do no more than this.
        weakref.finalize(view, self._unread.append, ref.number).atexit = False
        return list(pa.ipc.open_stream(pa.py_buffer(view)))

    def _tidy(self) -> None:
        numbers = []
        with contextlib.suppress(IndexError):
            while True:
                numbers.append(self._unread.popleft())
        if numbers:
            self._tell("unread", numbers)


class _Lent:
    """A value in Ray's store, or in the message; see ``engines.parcel.Lent``."""

    def __init__(self, place: Place, pickled: bytes, held: Any) -> None:
        self._place = place
        self._pickled = pickled
        self._held = held

    def make(self) -> Any:
        if self._held is None:
            return pickle.loads(self._pickled)
        stored, buffers = self._place.fetch(self._held)
        return pickle.loads(stored, buffers=private(buffers))

    def close(self) -> None:
        self._held = None


class _Broken:
    """Stands in for an object that could not be made: every call tells why."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _is_seen(path: str) -> bool:
    """Say whether a file is there; network folders may take a moment to show it."""
    until = time.monotonic() + SIGHT
    while not os.path.exists(path):
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True
