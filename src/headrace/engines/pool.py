"""A pool of workers as the driver holds it: calls, blocks and replacements, for processes and actors alike."""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, TypeVar

from headrace.core.engine_ports import PoolSpec
from headrace.core.messages import BlocksFreed
from headrace.core.work import Block, BlockRef, Task
from headrace.engines.deaths import Death, RestartPolicy
from headrace.engines.object_store import StoredObject
from headrace.errors import ExecutorClosed, HeadraceError, NeverReady, WorkerDied


class BlockRegistry:
    """Holds what keeps each block alive until its readers have released it, or it is dropped.

    >>> registry, ref = BlockRegistry(), BlockRef(1, 0, 800, 7)
    >>> registry.add(ref, "the object")
    >>> registry.add_reader(ref, reader=2)
    'the object'
    >>> [ref.number for ref in registry.release([7], reader=2)]
    [7]
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._blocks: dict[int, tuple[BlockRef, Any]] = {}
        self._readers: dict[int, list[int]] = {}  # by block: its readers, each as often as it was sent there
        self._expected: dict[int, int] = {}  # by block: how many readers are still to come, if that is known
        self._dead: set[int] = set()

    def add(self, ref: BlockRef, held: Any) -> None:
        """Register a block; ``held`` is what keeps it alive."""
        with self._lock:
            self._blocks[ref.number] = ref, held

    def add_reader(self, ref: BlockRef, reader: int) -> Any | None:
        """Note that ``reader`` gets a block, and return what was held for it; None if the block or reader is gone."""
        with self._lock:
            if reader in self._dead or ref.number not in self._blocks:
                return None
            self._count_reader(ref.number)
            self._readers.setdefault(ref.number, []).append(reader)
            return self._blocks[ref.number][1]

    def skip_reader(self, ref: BlockRef) -> list[BlockRef]:
        """A worker that was to read a block is gone; return the block if nobody else reads it, now or later."""
        with self._lock:
            self._count_reader(ref.number)
            return self._remove_unread(ref.number)

    def release(self, numbers: Iterable[int], reader: int) -> list[BlockRef]:
        """``reader`` does not read these blocks any more; return those that nobody reads now."""
        with self._lock:
            freed: list[BlockRef] = []
            for number in numbers:
                readers = self._readers.get(number, [])
                if reader in readers:
                    readers.remove(reader)
                    freed += self._remove_unread(number)
            return freed

    def hold(self, ref: BlockRef) -> None:
        """Hold a block until it had two readers, though the first of them releases it before the second comes."""
        with self._lock:
            self._expected[ref.number] = 2

    def drop(self, ref: BlockRef) -> list[BlockRef]:
        """Remove a block that will have no more readers; return it, unless somebody reads it."""
        with self._lock:
            self._expected.pop(ref.number, None)
            return self._remove_unread(ref.number)

    def remove_dead(self, worker: int) -> list[BlockRef]:
        """A worker is gone: return the blocks that nobody reads now."""
        with self._lock:
            self._dead.add(worker)
            read = [number for number, readers in self._readers.items() for each in readers if each == worker]
            return self.release(read, worker)

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._blocks.clear()
            self._readers.clear()
            self._expected.clear()

    def _count_reader(self, number: int) -> None:
        if self._expected.get(number):
            self._expected[number] -= 1

    def _remove_unread(self, number: int) -> list[BlockRef]:
        """Remove a block if nobody reads it, now or later."""
        if number not in self._blocks or self._readers.get(number) or self._expected.get(number):
            return []
        ref, _ = self._blocks.pop(number)
        self._readers.pop(number, None)
        self._expected.pop(number, None)
        self._removed(ref)
        return [ref]

    def _removed(self, ref: BlockRef) -> None:
        """A block was removed; for subclasses."""


def blocks_in(args: Sequence[Any]) -> list[BlockRef]:
    """Return the blocks that a call's arguments refer to."""
    found: list[BlockRef] = []
    for value in args:
        if isinstance(value, Task):
            found += blocks_in(value.blocks)
        elif isinstance(value, (Block, BlockRef)):
            found.append(value if isinstance(value, BlockRef) else value.ref)
    return found


def _sent(worker: WorkerHandle, args: Sequence[Any], along: list[Message] | None = None) -> tuple[Any, ...]:
    """Send the stored values among arguments, or put them ``along`` with the call; return all, those by number."""
    sent = []
    for value in args:
        if isinstance(value, StoredObject):
            if along is None or not value.once:
                worker.send_object(value)
            elif (message := worker.with_call(value)) is not None:
                along.append(message)
            value = value.number
        sent.append(value)
    return tuple(sent)


Notify = Callable[..., None]  # with a worker's number and its note, and a packed value if one came beside
Message = tuple[Any, ...]


class WorkerHandle(ABC):
    """One worker, and the calls that it has not answered.

    ``preparing``: what it does before it can work; empty if it can. ``round``: after how many rounds of deaths it was
    started. ``kill_reason``: why we ended it, if we did. ``placed``: it has a machine. ``leaving``: it gets nothing
    more to do.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: dict[int, Future[Any]] = {}
        self.preparing = "starting"
        self.round = 0
        self.kill_reason = ""
        self.placed = True
        self.leaving = False

    @property
    def is_ready(self) -> bool:
        """Whether it may be given something to do."""
        return self.placed and not self.leaving

    @property
    def is_idle(self) -> bool:
        """Whether it can close what it hosts at once: before it is ready there is nothing to close."""
        return not self.calls and not self.preparing

    @abstractmethod
    def send(self, message: Message, attached: Any = None) -> None:
        """Send a message, from any thread, with what cannot be pickled. A worker that is dead misses it."""

    @abstractmethod
    def kill(self) -> None:
        """End it, at once."""

    def send_object(self, stored: StoredObject) -> None:
        """Send a stored value, and before it those that it refers to, unless the worker has them."""
        for each in stored.with_linked():
            if self.number in each.known:
                continue
            if not each.once:
                each.known.add(self.number)
            with each.to_send() as (message, attached):
                self.send(message, attached)

    def with_call(self, stored: StoredObject) -> Message | None:
        """Return the message of a value that one call needs, to go along with the call; None if it was sent."""
        for link in stored.links:
            if isinstance(link, StoredObject):
                self.send_object(link)
        message = stored.in_message()
        if message is None:
            self.send_object(stored)
        return message

    def add_call(self, number: int, future: Future[Any]) -> None:
        """A call is about to be sent."""
        self.calls[number] = future

    def fail(self, error: BaseException) -> None:
        """Its calls will not be answered any more."""
        for future in list(self.calls.values()):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
        self.calls.clear()


W = TypeVar("W", bound=WorkerHandle)


class WorkerPool(ABC, Generic[W]):
    """What pools have in common; see ``Pool``. ``blocks`` are those of the engine."""

    end_within = 10.0  # seconds that an idle worker has to close what it hosts

    def __init__(self, spec: PoolSpec, notify: Notify, blocks: BlockRegistry) -> None:
        self._spec = spec
        self._notify = notify
        self._blocks = blocks
        self._lock = threading.RLock()
        self._workers: dict[int, W] = {}
        self._call_numbers = itertools.count()
        self._restarts = RestartPolicy()
        self._broken: HeadraceError | None = None
        self._closing = False
        self._size = spec.size

    # ------------------------------------------------------------ the port

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``."""
        with self._lock:
            self._check_usable()
            return {number: len(each.calls) for number, each in self._workers.items() if each.is_ready}

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``. Stored values travel once per worker; the call has their numbers."""
        future: Future[Any] = Future()
        with self._lock:
            self._check_usable()
            if worker is None:
                worker = self._least_loaded().number
            future.worker = worker  # type: ignore[attr-defined]
            chosen = self._workers.get(worker)
            if chosen is not None:
                number = next(self._call_numbers)
                chosen.add_call(number, future)
        if chosen is None:
            future.set_exception(WorkerDied(f"worker {worker} is gone"))
            self._skip_reader(worker, args)
        else:
            values: list[Message] = []
            message = ("call", number, method, _sent(chosen, args, values))
            self._send_with_blocks(chosen, (*message, values) if values else message, args)
        return future

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        with self._lock:
            chosen = self._workers.get(worker)
        if chosen is None:
            self._skip_reader(worker, args)
        else:
            self._send_with_blocks(chosen, ("feed", _sent(chosen, args)), args)

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``."""
        with self._lock:
            if self._closing:
                return
            size = self._possible_size(size)
            staying = self._staying()
            surplus = max(0, len(staying) - size)
            idle = [each for each in staying if not each.calls and each.number not in keep]
            leaving = sorted(idle, key=lambda each: each.placed)[:surplus]  # those not placed yet first
            for each in leaving:
                del self._workers[each.number]
            self._size = max(size, len(self._staying()))
            self._fill()
        self._end_idle(leaving)

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """See ``Pool.kill``."""
        with self._lock:
            chosen = self._workers.get(worker)
            if chosen is not None:
                chosen.kill_reason = reason
                self._size = self._size if replace else max(1, self._size - 1)
                chosen.kill()

    def send_to(self, worker: int, message: Message) -> None:
        """Send a message to a worker, if it is one of ours."""
        with self._lock:
            chosen = self._workers.get(worker)
        if chosen is not None:
            chosen.send(message)

    def workers(self) -> list[W]:
        """The live workers."""
        with self._lock:
            return list(self._workers.values())

    # ------------------------------------------------------------ what comes from workers

    def on_message(self, worker: W, message: Message, block: Any = None) -> None:
        """Handle a message of a worker; ``block``: what came beside it."""
        kind = message[0]
        if kind in ("result", "error"):
            self._answered(worker, *message)
        elif kind == "note":
            self._notify(worker.number, *message[1:])
        elif kind == "released":
            self._free(worker.number, self._blocks.release(message[1], worker.number))
        elif kind == "preparing":
            worker.preparing = message[1]
        else:
            self._on_other_message(worker, message, block)

    def remove_dead(self, worker: W, cause: BaseException | None = None) -> None:
        """A worker is gone: fail its calls, and start another in its place."""
        with self._lock:
            if self._closing or self._workers.pop(worker.number, None) is None:
                return
            worker.kill()
            death, error = self._cause_of_death(worker, cause)
            if death is not None and death.preparing and not worker.kill_reason:
                self._restarts.on_death(death, worker.round)
            if self._broken is None and self._restarts.should_give_up(self._size):
                self._broken = WorkerDied(self._never_ready(self._restarts.deaths))
            self._fill()
        self._free(worker.number, self._blocks.remove_dead(worker.number))
        worker.fail(error)
        if self._spec.on_end is not None:
            self._spec.on_end(worker.number)

    def give_up(self, error: HeadraceError) -> None:
        """Nothing more can come from this pool: fail every call, now and later."""
        with self._lock:
            self._broken = self._broken or error
        for worker in self.workers():
            worker.fail(error if isinstance(error, WorkerDied) else NeverReady(str(error)))

    def _answered(self, worker: W, kind: str, number: int, value: Any) -> None:
        with self._lock:
            self._restarts.on_answer()
            future = worker.calls.pop(number, None)
        if future is not None:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(value) if kind == "error" else future.set_result(value)

    # ------------------------------------------------------------ blocks

    def _send_with_blocks(self, worker: W, message: Message, args: tuple[Any, ...]) -> None:
        blocks = []
        for ref in blocks_in(args):
            held = self._blocks.add_reader(ref, worker.number)
            if held is None:
                self._free(worker.number, self._blocks.skip_reader(ref))
            else:
                blocks.append((ref, held))
        self._send(worker, message, blocks)

    def _skip_reader(self, worker: int, args: tuple[Any, ...]) -> None:
        for ref in blocks_in(args):
            self._free(worker, self._blocks.skip_reader(ref))

    def _free(self, reader: int, refs: list[BlockRef]) -> None:
        """Nobody reads these blocks any more."""
        if refs:
            self._notify(reader, BlocksFreed(tuple(ref.number for ref in refs)))

    # ------------------------------------------------------------ workers

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _staying(self) -> list[W]:
        return [worker for worker in self._workers.values() if not worker.leaving]

    def _least_loaded(self) -> W:
        ready = [worker for worker in self._workers.values() if worker.is_ready]
        return min(ready or self._staying() or self._workers.values(), key=lambda worker: len(worker.calls))

    def _fill(self) -> None:
        """Start the workers that are missing."""
        with self._lock:
            wanted = self._wanted_size()
            while self._broken is None and not self._closing and len(self._staying()) < wanted:
                try:
                    self._start_worker()
                except ExecutorClosed as error:  # a value that it needs is gone
                    self._broken = error

    def _possible_size(self, size: int) -> int:
        """Return how many of ``size`` workers there can be."""
        return size

    def _wanted_size(self) -> int:
        """Return how many workers there should be now."""
        return self._size

    # ------------------------------------------------------------ what differs

    @abstractmethod
    def _start_worker(self) -> None:
        """Start one worker more."""

    @abstractmethod
    def _end_idle(self, workers: Sequence[W]) -> None:
        """Let workers, which are not in the pool any more, close what they host; then end them."""

    @abstractmethod
    def _send(self, worker: W, message: Message, blocks: Sequence[tuple[BlockRef, Any]]) -> None:
        """Send a message, with the blocks that it refers to and what is held for each."""

    @abstractmethod
    def _on_other_message(self, worker: W, message: Message, block: Any) -> None:
        """Handle a message that only workers of this kind send."""

    @abstractmethod
    def _cause_of_death(self, worker: W, cause: BaseException | None) -> tuple[Death | None, WorkerDied]:
        """Return how a worker ended, None if the pool is not to blame, and the error for its calls."""

    @abstractmethod
    def _never_ready(self, deaths: Sequence[Death]) -> str:
        """Say that workers ended, one after another, before any of them could work."""
