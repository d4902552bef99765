"""Batches in shared memory: a worker lays them in slots, others map the slots once and read them where they lie.

A slot is an anonymous memory file. First touch of its pages is most of the cost of moving data, so slots are
kept and used again: as many as were in use at one time, and a few to spare. Nobody but the kernel has to clean up:
the memory is gone with the last descriptor.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from millrace.core.work import BlockRef
from millrace.engines.parcel import memory_file

T = TypeVar("T")

LEAST = 1 << 20
LOOSE = 4  # a slot holds blocks down to this fraction of it: smaller ones would keep too much memory in use
SPARE = 32 << 20  # bytes of slots beyond what was in use at one time: news of a free one take their time
SPARE_PART = 8  # of a budget for blocks and spare slots together, spare is one part in so many at most


def spare_of(budget: int) -> int:
    """Return how many bytes of a budget are for slots that nobody uses."""
    return min(SPARE, budget // SPARE_PART)


class Shelf:
    """The slots of one worker, in which it lays what others shall read."""

    def __init__(self, owner: int, announce: Callable[[int, int], None]) -> None:
        """``announce(slot, fd)`` tells of a new slot before anything is in it, and closes the descriptor."""
        self._owner = owner
        self._announce = announce
        self._slots: dict[int, mmap.mmap] = {}
        self._written: dict[int, int] = {}  # bytes that were ever written to: what a slot takes of memory
        self._free: list[int] = []
        self._answers: deque[tuple[int, bool]] = deque()
        self._lock = threading.Lock()
        self._laid = 0
        self._made = 0

    def lay(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        """Copy batches into a free slot, as an Arrow IPC stream."""
        measure = pa.MockOutputStream()
        _write(measure, schema, batches)
        length = measure.size()
        slot = self._slot(length)
        self._written[slot] = size = max(self._written.get(slot, 0), length)
        # Slice the memoryview, not the buffer: Arrow's writer takes the process down over an immutable slice.
        room = memoryview(self._slots[slot])[:length]
        _write(pa.FixedSizeBufferWriter(pa.py_buffer(room)), schema, batches)
        self._laid += 1
        return BlockRef(self._owner, slot, size, (self._owner << 32) + self._laid, length)

    def free(self, slot: int) -> None:
        """Nobody reads what is in ``slot`` any more. May be called from any thread."""
        with self._lock:
            self._free.append(slot)

    def give_back(self, slot: int) -> None:
        """Let go of a slot, unless it is in use again. May be called from any thread; ``answers`` has the outcome."""
        with self._lock:
            free = slot in self._free
            if free:
                self._free.remove(slot)
                del self._slots[slot], self._written[slot]
        self._answers.append((slot, free))

    def answers(self) -> list[tuple[int, bool]]:
        """Return, once, which slots were to be given back, and whether they were."""
        return _drained(self._answers)

    def _slot(self, size: int) -> int:
        with self._lock:
            fitting = [
                slot for slot in self._free if size <= len(self._slots[slot]) <= max(LEAST, LOOSE * size)
            ]
            if fitting:
                best = min(fitting, key=lambda slot: len(self._slots[slot]))
                self._free.remove(best)
                return best
        room = max(LEAST, 1 << (size - 1).bit_length())
        fd = memory_file(room)
        slot, self._made = self._made, self._made + 1
        self._slots[slot] = mmap.mmap(fd, room)
        self._announce(slot, fd)
        return slot


def _drained(items: deque[T]) -> list[T]:
    """Take all that is there; somebody else may do so at the same time."""
    taken = []
    with contextlib.suppress(IndexError):
        while True:
            taken.append(items.popleft())
    return taken


def _write(sink: pa.NativeFile, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


class Reading:
    """The slots of others that this process has mapped; knows which blocks in them nobody looks at any more."""

    def __init__(self) -> None:
        self._maps: dict[tuple[int, int], mmap.mmap] = {}
        self.unread: deque[int] = deque()

    def map(self, owner: int, slot: int, fd: int) -> None:
        """Map a slot; closes the descriptor."""
        # Shared and writable: a private map would go on showing its own copy of a page that was once written to.
        self._maps[owner, slot] = mmap.mmap(fd, os.fstat(fd).st_size)
        os.close(fd)

    def unmap(self, owner: int, slot: int) -> None:
        """Let go of a slot that will not be used again; its pages go with the last batch that lies there."""
        self._maps.pop((owner, slot), None)

    def read(self, ref: BlockRef) -> list[pa.RecordBatch]:
        """Return the batches of a block, where they lie. They stay valid as long as anybody has them."""
        view = np.frombuffer(self._maps[ref.owner, ref.slot], np.uint8, ref.length)
        # Runs in whatever thread lets go last, maybe amid anything: it may do no more than this.
        weakref.finalize(view, self.unread.append, ref.number).atexit = False
        return list(pa.ipc.open_stream(pa.py_buffer(view)))

    def taken_leave(self) -> list[int]:
        """Return the numbers of the blocks that nobody looks at any more, once."""
        return _drained(self.unread)


class Store:
    """What the driver knows of all slots of an engine: descriptors, what lies in them, and who reads it.

    What is in use and what is idle together may take what was in use at one time, and ``spare`` bytes.
    """

    def __init__(self, spare: int = SPARE) -> None:
        self._spare = spare
        self._lock = threading.RLock()
        self._fds: dict[tuple[int, int], int] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._total = 0  # bytes of all slots, but for those that were asked back
        self._used = 0
        self._peak = 0  # the most that was in use at one time
        self._idle: dict[tuple[int, int], None] = {}  # slots without a block; the longest idle is the first
        self._leaving: set[tuple[int, int]] = set()  # slots that were asked back
        self._blocks: dict[int, BlockRef] = {}
        self._readers: dict[int, list[int]] = {}  # by block: the workers that it was lent to, each as often
        self._due: dict[int, int] = {}  # by block: how often it will still be lent, if that is known
        self._known: dict[int, set[tuple[int, int]]] = {}  # by worker: the slots that it has mapped
        self._gone: set[int] = set()
        self._retired: list[tuple[int, int, int]] = []

    def add_slot(self, owner: int, slot: int, fd: int) -> None:
        """Keep a new slot's descriptor."""
        with self._lock:
            self._fds[owner, slot] = fd
            self._sizes[owner, slot] = 0

    def add_block(self, ref: BlockRef) -> None:
        """Something was laid in a slot; it stays until those whom it is lent to let go, or it is dropped."""
        with self._lock:
            key = ref.owner, ref.slot
            self._blocks[ref.number] = ref
            self._idle.pop(key, None)
            if key not in self._leaving:
                self._total += ref.size - self._sizes[key]
            self._sizes[key] = ref.size
            self._used += ref.size
            self._peak = max(self._peak, self._used)

    def surplus(self) -> list[tuple[int, int]]:
        """Return the slots that their owners should give back, the longest idle first."""
        with self._lock:
            asked = []
            while self._total > self._peak + self._spare and self._idle:
                key = next(iter(self._idle))
                del self._idle[key]
                self._leaving.add(key)
                self._total -= self._sizes[key]
                asked.append(key)
            return asked

    def given_back(self, owner: int, slot: int, given: bool) -> None:
        """A worker that was asked for a slot gave it back, or uses it again."""
        with self._lock:
            key = owner, slot
            if key not in self._leaving:
                return
            self._leaving.discard(key)
            self._total += self._sizes[key]
            if given:
                self._close(key)
            elif not self._holds_block(key):
                self._idle[key] = None

    def lend(self, ref: BlockRef, reader: int) -> bool:
        """Note that ``reader`` gets a block; False if it, or the block, is gone."""
        with self._lock:
            if reader in self._gone or ref.number not in self._blocks:
                return False
            self._was_due(ref)
            self._readers.setdefault(ref.number, []).append(reader)
            return True

    def to_send(self, ref: BlockRef, reader: int) -> int | None:
        """Return the descriptor that ``reader`` must be sent before it can read a block, if it has not got it."""
        with self._lock:
            known = self._known.setdefault(reader, set())
            if (ref.owner, ref.slot) in known:
                return None
            known.add((ref.owner, ref.slot))
            return self._fds.get((ref.owner, ref.slot))

    def retired(self) -> list[tuple[int, int, int]]:
        """Return (reader, owner, slot) where a worker still maps a slot that nobody will use again, once."""
        with self._lock:
            retired, self._retired = self._retired, []
            return retired

    def unread(self, numbers: Sequence[int], reader: int) -> list[BlockRef]:
        """``reader`` let go of blocks; return those that nobody reads now."""
        with self._lock:
            freed = []
            for number in numbers:
                readers = self._readers.get(number)
                if readers is None:
                    continue
                if reader in readers:
                    readers.remove(reader)
                if not readers and number in self._blocks and not self._due.get(number):
                    freed += self._forget(self._blocks[number])
            return freed

    def keep(self, ref: BlockRef) -> None:
        """Hold on to a block until it was lent twice, though its first reader lets go of it."""
        with self._lock:
            self._due[ref.number] = 2

    def drop(self, ref: BlockRef) -> list[BlockRef]:
        """Forget a block that will not be lent any more, unless somebody reads it."""
        with self._lock:
            self._due.pop(ref.number, None)
            return self.missed(ref)

    def missed(self, ref: BlockRef) -> list[BlockRef]:
        """Somebody who was to be lent a block is gone: forget it, unless it is read or due elsewhere."""
        with self._lock:
            self._was_due(ref)
            idle = not self._readers.get(ref.number) and not self._due.get(ref.number)
            return self._forget(ref) if idle and ref.number in self._blocks else []

    def _was_due(self, ref: BlockRef) -> None:
        if self._due.get(ref.number):
            self._due[ref.number] -= 1

    def bury(self, worker: int) -> list[BlockRef]:
        """A worker is gone: return the blocks that nobody reads now. What it laid stays as long as it is read."""
        with self._lock:
            self._known.pop(worker, None)
            lent = [
                number for number, readers in self._readers.items() for reader in readers if reader == worker
            ]
            freed = self.unread(lent, worker)
            self._gone.add(worker)
            for owner, slot in [key for key in self._fds if key[0] == worker]:
                if not self._holds_block((owner, slot)):
                    self._close((owner, slot))
            return freed

    def close(self) -> None:
        """Close every descriptor."""
        with self._lock:
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _forget(self, ref: BlockRef) -> list[BlockRef]:
        key = ref.owner, ref.slot
        self._blocks.pop(ref.number, None)
        self._readers.pop(ref.number, None)
        self._due.pop(ref.number, None)
        self._used -= ref.size
        if ref.owner in self._gone:
            self._close(key)
        elif key not in self._leaving:
            self._idle[key] = None
        return [ref]

    def _holds_block(self, key: tuple[int, int]) -> bool:
        return any((ref.owner, ref.slot) == key for ref in self._blocks.values())

    def _close(self, key: tuple[int, int]) -> None:
        if key not in self._fds:
            return
        os.close(self._fds.pop(key))
        size = self._sizes.pop(key)
        if key in self._leaving:
            self._leaving.discard(key)
        else:
            self._total -= size
        self._idle.pop(key, None)
        for reader, known in self._known.items():
            if key in known:
                known.discard(key)
                self._retired.append((reader, *key))
