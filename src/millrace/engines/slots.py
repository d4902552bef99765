"""Batches in shared memory: a worker lays them in slots, others map the slots once and read them where they lie.

A slot is an anonymous memory file. First touch of its pages is most of the cost of moving data, so slots are
kept and used again. Nobody but the kernel has to clean up: the memory is gone with the last descriptor.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from millrace.core.work import BlockRef
from millrace.engines.parcel import memory_file

LEAST = 1 << 20


class Shelf:
    """The slots of one worker, in which it lays what others shall read."""

    def __init__(self, owner: int, announce: Callable[[int, int], None]) -> None:
        """``announce(slot, fd)`` tells of a new slot before anything is in it, and closes the descriptor."""
        self._owner = owner
        self._announce = announce
        self._slots: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()
        self._laid = 0

    def lay(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        """Copy batches into a free slot, as an Arrow IPC stream."""
        measure = pa.MockOutputStream()
        _write(measure, schema, batches)
        size = measure.size()
        slot = self._slot(size)
        # Slice the memoryview, not the buffer: Arrow's writer takes the process down over an immutable slice.
        _write(pa.FixedSizeBufferWriter(pa.py_buffer(memoryview(self._slots[slot])[:size])), schema, batches)
        self._laid += 1
        return BlockRef(self._owner, slot, size, (self._owner << 32) + self._laid)

    def free(self, slot: int) -> None:
        """Nobody reads what is in ``slot`` any more. May be called from any thread."""
        with self._lock:
            self._free.append(slot)

    def _slot(self, size: int) -> int:
        with self._lock:
            fitting = [slot for slot in self._free if len(self._slots[slot]) >= size]
            if fitting:
                best = min(fitting, key=lambda slot: len(self._slots[slot]))
                self._free.remove(best)
                return best
        room = max(LEAST, 1 << (size - 1).bit_length())
        fd = memory_file(room)
        slot = len(self._slots)
        self._slots[slot] = mmap.mmap(fd, room)
        self._announce(slot, fd)
        return slot


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
        """Let go of a slot whose owner is gone; its pages go with the last batch that lies there."""
        self._maps.pop((owner, slot), None)

    def read(self, ref: BlockRef) -> list[pa.RecordBatch]:
        """Return the batches of a block, where they lie. They stay valid as long as anybody has them."""
        view = np.frombuffer(self._maps[ref.owner, ref.slot], np.uint8, ref.size)
        # Runs in whatever thread lets go last, maybe amid anything: it may do no more than this.
        weakref.finalize(view, self.unread.append, ref.number).atexit = False
        return list(pa.ipc.open_stream(pa.py_buffer(view)))

    def taken_leave(self) -> list[int]:
        """Return the numbers of the blocks that nobody looks at any more, once."""
        return [self.unread.popleft() for _ in range(len(self.unread))]


class Store:
    """What the driver knows of all slots of an engine: descriptors, what lies in them, and who reads it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._fds: dict[tuple[int, int], int] = {}
        self._blocks: dict[int, BlockRef] = {}
        self._readers: dict[int, set[int]] = {}  # by block: the workers that it was lent to
        self._known: dict[int, set[tuple[int, int]]] = {}  # by worker: the slots that it has mapped
        self._gone: set[int] = set()
        self._retired: list[tuple[int, int, int]] = []

    def add_slot(self, owner: int, slot: int, fd: int) -> None:
        """Keep a new slot's descriptor."""
        with self._lock:
            self._fds[owner, slot] = fd

    def add_block(self, ref: BlockRef) -> None:
        """Something was laid in a slot; it stays until those whom it is lent to let go, or it is dropped."""
        with self._lock:
            self._blocks[ref.number] = ref

    def lend(self, ref: BlockRef, reader: int) -> bool:
        """Note that ``reader`` gets a block; False if it, or the block, is gone."""
        with self._lock:
            if reader in self._gone or ref.number not in self._blocks:
                return False
            self._readers.setdefault(ref.number, set()).add(reader)
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
                readers.discard(reader)
                if not readers and number in self._blocks:
                    freed += self._forget(self._blocks[number])
            return freed

    def drop(self, ref: BlockRef) -> list[BlockRef]:
        """Forget a block that was lent to nobody."""
        with self._lock:
            known = ref.number in self._blocks and not self._readers.get(ref.number)
            return self._forget(ref) if known else []

    def bury(self, worker: int) -> list[BlockRef]:
        """A worker is gone: return the blocks that nobody reads now. What it laid stays as long as it is read."""
        with self._lock:
            self._known.pop(worker, None)
            lent = [number for number, readers in self._readers.items() if worker in readers]
            freed = self.unread(lent, worker)
            self._gone.add(worker)
            for owner, slot in [key for key in self._fds if key[0] == worker]:
                self._close_if_done(owner, slot)
            return freed

    def close(self) -> None:
        """Close every descriptor."""
        with self._lock:
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _forget(self, ref: BlockRef) -> list[BlockRef]:
        self._blocks.pop(ref.number, None)
        self._readers.pop(ref.number, None)
        if ref.owner in self._gone:
            self._close_if_done(ref.owner, ref.slot)
        return [ref]

    def _close_if_done(self, owner: int, slot: int) -> None:
        used = any((ref.owner, ref.slot) == (owner, slot) for ref in self._blocks.values())
        if not used and (owner, slot) in self._fds:
            os.close(self._fds.pop((owner, slot)))
            for reader, known in self._known.items():
                if (owner, slot) in known:
                    known.discard((owner, slot))
                    self._retired.append((reader, owner, slot))
