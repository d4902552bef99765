"""What lives in an actor: a worker loop whose messages are calls of the actor's methods.

The conversation is that of ``headrace.engines.local.host``, by other means. The driver calls ``send`` with a message
and the objects of the blocks that it speaks of; what the worker has to send waits until the driver asks, by ``poll``,
so notes and answers keep their order. A block that was shared is the second result of a ``poll``: so its owner
is the driver, and it stays when the worker ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import ray.exceptions
import ray.util

from headrace.annex.ray.cluster import first_line
from headrace.annex.ray.object_store import private
from headrace.core.engine_ports import WorkerContext
from headrace.core.messages import CallStarted
from headrace.core.process import become_worker
from headrace.core.terminal import say
from headrace.core.work import BlockRef
from headrace.engines.local.machine import family_memory
from headrace.engines.references import WorkerCache
from headrace.engines.worker_loop import WorkerLoop, drained, picklable_error
from headrace.errors import NodeLost
from headrace.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

LOST_AFTER = 600.0  # seconds after which a block that does not come counts as lost
POLL_WITHIN = 10.0  # seconds that a poll waits for a message, and a confirmed message for the next poll
MAX_MESSAGES = 1_000  # that one poll returns
VISIBLE_WITHIN = 10.0  # seconds until a file that another machine wrote must be visible here


def fetched(reference: Any) -> Any:
    """Return what an object of the store is; raises ``NodeLost`` if it is lost."""
    try:
        return ray.get(reference, timeout=LOST_AFTER)
    except ray.exceptions.RayError as error:
        raise NodeLost(f"a block was lost: {first_line(error)}") from None


class ActorTransport:
    """The worker's end of the actor; see ``Transport``."""

    def __init__(
        self,
        number: int,
        threads: int,
        path: Sequence[str],
        sees: str,
        pause: float,
        factory: tuple[Any, Any],
        lent: tuple[Sequence[int], Sequence[tuple[tuple[Any, ...], Mapping[int, Any]]]] = ((), ()),
    ) -> None:
        """``lent``: the numbers of the values that what is hosted refers to, and the messages with these."""
        self._number = number
        self._threads = threads
        self._outbox: deque[tuple[tuple[Any, ...], Any]] = deque()
        self._changed = threading.Condition()
        self._queued = 0  # messages so far
        self._polled = 0  # of them, returned by a poll
        self._confirmed = 0  # of these, known to the driver
        self._early: dict[int, tuple[Any, ...]] = {}  # messages that overtook others
        self._next = 0
        self._objects: dict[int, list[Any]] = {}
        self._released: deque[int] = deque()
        self._cache = WorkerCache()
        self._loop = WorkerLoop(self)
        self._shared = 0
        self._ended = threading.Event()
        become_worker()
        known = set(sys.path)
        sys.path.extend(each for each in path if each not in known)
        with contextlib.suppress(ValueError):  # where this is not the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        node = str(ray.get_runtime_context().get_node_id())
        self._send("placed", __version__, os.getpid(), str(ray.util.get_node_ip_address()), node)
        links, messages = lent
        for message, objects in messages:
            self._objects.update({number: [reference] for number, reference in objects.items()})
            self._on_message(message)
        self._loop.inbox.put(("host", factory, links, sees, pause))
        threading.Thread(target=self._run, name="headrace-work", daemon=True).start()

    # ------------------------------------------------------------ what the driver calls

    def send(self, number: int, message: tuple[Any, ...], objects: Mapping[int, Any]) -> None:
        """Receive a message; they are served in the order of their numbers."""
        for block, reference in objects.items():
            self._objects.setdefault(block, []).append(reference)
        self._early[number] = message
        while self._next in self._early:
            self._on_message(self._early.pop(self._next))
            self._next += 1
        for reference in objects.values():
            ray.wait([reference], timeout=0, fetch_local=True)  # have it brought here

    def poll(self) -> tuple[list[tuple[Any, ...]], Any]:
        """Return what there is to send, up to the first block, and that block; wait a little if there is nothing."""
        with self._changed:
            self._confirmed = self._polled  # a new poll means that the answer to the last one arrived
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._outbox, POLL_WITHIN)
            messages: list[tuple[Any, ...]] = []
            while self._outbox and len(messages) < MAX_MESSAGES:
                message, block = self._outbox.popleft()
                self._polled += 1
                messages.append(message)
                if block is not None:
                    return messages, block
            return messages, None

    def end(self) -> None:
        """Close what is hosted, after the calls before this."""
        self._loop.inbox.put(("end",))
        self._ended.wait()

    # ------------------------------------------------------------ from the driver

    def _on_message(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "feed":
            self._loop.feed(message[1])
        elif kind == "value":
            _, number, pickled, links = message
            references = self._objects.pop(number, None)
            self._cache.add(number, links, _ReceivedPickle(pickled, references[0] if references else None))
        elif kind == "weigh":
            self._send("memory", family_memory(os.getpid()))
        elif kind == "dump":
            say(f"worker {self._number}, process {os.getpid()}:", sys.stderr)
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
        else:
            self._loop.inbox.put(message)

    def _run(self) -> None:
        try:
            self._loop.run()
            self._loop.close()
        except BaseException as error:  # without this thread, the actor could only hang
            say("".join(traceback.format_exception(error)), sys.stderr, end="")
            os._exit(1)
        self._ended.set()

    def prepare(self, *args: Any) -> tuple[WorkerContext, Callable[[], Any]]:
        """See ``Transport``."""
        factory, links, sees, pause = args
        if pause:
            time.sleep(pause)
        import pyarrow as pa
        import pyarrow.parquet

        pa.set_memory_pool(pa.system_memory_pool())  # see _ALLOCATOR in local/process.py
        if sees and not _is_visible(sees):
            self._send("output not visible", sees, str(ray.util.get_node_ip_address()))
        context = WorkerContext(
            self._number,
            self._threads,
            self._note,
            self._share,
            self._take,
            self.send_released,
            lambda what: self._send_confirmed("preparing", what),
            tuple(map(str, ray.get_gpu_ids())),
            self._cache.value,
        )
        return context, lambda: self._cache.resolved(
            links, lambda: pickle.loads(factory[0], buffers=private(factory[1]))
        )

    # ------------------------------------------------------------ to the driver

    def send_result(self, number: int, value: Any) -> None:
        """See ``Transport``."""
        # Pickled here: what cannot be unpickled in the driver is that call's error, not the end of this worker.
        try:
            pickled = pickle.dumps(value, protocol=5)
        except Exception as error:
            self.send_error(number, picklable_error(error))
        else:
            self._send("result", number, pickled)

    def send_error(self, number: int, error: BaseException) -> None:
        """See ``Transport``."""
        try:
            pickled = pickle.dumps(error, protocol=5)
        except Exception as unfit:
            pickled = pickle.dumps(picklable_error(unfit))
        self._send("error", number, pickled)

    def _note(self, note: Any) -> None:
        if isinstance(note, CallStarted):
            self._send_confirmed("note", note)
        else:
            self._send("note", note)

    def _send(self, *message: Any, block: Any = None) -> None:
        with self._changed:
            self._outbox.append((message, block))
            self._queued += 1
            self._changed.notify_all()

    def _send_confirmed(self, *message: Any) -> None:
        """Send what the driver must know in case that what comes next ends this process."""
        self._send(*message)
        with self._changed:
            last = self._queued
            self._changed.wait_for(lambda: self._confirmed >= last, POLL_WITHIN)

    # ------------------------------------------------------------ blocks

    def _share(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        block = sink.getvalue()
        self._shared += 1
        ref = BlockRef(self._number, 0, block.size, (self._number << 32) + self._shared, block.size)
        self._send("block", ref, block=block)
        return ref

    def _take(self, ref: BlockRef) -> list[pa.RecordBatch]:
        import pyarrow as pa

        try:
            references = self._objects.get(ref.number)
            if not references:
                raise NodeLost("a block was lost")
            reference = references.pop()
            if not references:
                del self._objects[ref.number]
            view = np.frombuffer(fetched(reference), np.uint8)
        except NodeLost:
            self._released.append(ref.number)
            raise
        # Runs in the thread that drops the last reference, maybe amid anything: it may do no more than this.
        weakref.finalize(view, self._released.append, ref.number).atexit = False
        return list(pa.ipc.open_stream(pa.py_buffer(view)))

    def send_released(self) -> None:
        """See ``Transport``."""
        if numbers := drained(self._released):
            self._send("released", numbers)


class _ReceivedPickle:
    """A value in Ray's store, or in the message; see ``out_of_band_pickle.KeptPickle``."""

    def __init__(self, pickled: bytes, reference: Any) -> None:
        self._pickled = pickled
        self._reference = reference

    def load(self) -> Any:
        if self._reference is None:
            return pickle.loads(self._pickled)
        pickled, buffers = fetched(self._reference)
        return pickle.loads(pickled, buffers=private(buffers))

    def close(self) -> None:
        self._reference = None


def _is_visible(path: str) -> bool:
    """Say whether a file is there; network folders may take a moment to show it."""
    until = time.monotonic() + VISIBLE_WITHIN
    while not os.path.exists(path):
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True
