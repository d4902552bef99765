"""Batches in shared memory: a worker writes them to slots, others map the slots once and read them where they lie.

A slot is an anonymous memory file. First touch of its pages is most of the cost of moving data, so slots are
used again: there are as many as were in use at one time, and a few to spare (see ``slot_registry``). The kernel
cleans up: the memory is gone with the last descriptor.
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

from headrace.core.work import BlockRef
from headrace.engines.out_of_band_pickle import memory_file
from headrace.engines.worker_loop import drained

MIN_SLOT = 1 << 20  # bytes
# A slot takes blocks down to this fraction of it: smaller ones would keep too much memory in use.
MAX_RATIO = 4


class SlotAllocator:
    """The slots of one worker, to which it writes what others shall read."""

    def __init__(self, owner: int, announce: Callable[[int, int], None]) -> None:
        """``announce(slot, fd)`` sends a new slot to the driver before it is used, and closes the descriptor."""
        self._owner = owner
        self._announce = announce
        self._slots: dict[int, mmap.mmap] = {}
        self._written: dict[int, int] = {}  # bytes that were ever written to: what a slot takes of memory
        self._free: list[int] = []
        self._returned: deque[tuple[int, bool]] = deque()
        self._lock = threading.Lock()
        self._blocks = 0
        self._made = 0

    def write(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> BlockRef:
        """Copy batches into a free slot, as an Arrow IPC stream."""
        measure = pa.MockOutputStream()
        _write(measure, schema, batches)
        length = measure.size()
        slot = self._slot(length)
        self._written[slot] = size = max(self._written.get(slot, 0), length)
        # Slice the memoryview, not the buffer: Arrow's writer takes the process down over an immutable slice.
        room = memoryview(self._slots[slot])[:length]
        _write(pa.FixedSizeBufferWriter(pa.py_buffer(room)), schema, batches)
        self._blocks += 1
        return BlockRef(self._owner, slot, size, (self._owner << 32) + self._blocks, length)

    def free(self, slot: int) -> None:
        """Nobody reads what is in ``slot`` any more. May be called from any thread."""
        with self._lock:
            self._free.append(slot)

    def return_slot(self, slot: int) -> None:
        """Let go of a slot, unless it is in use again; ``returned`` says which. May be called from any thread."""
        with self._lock:
            free = slot in self._free
            if free:
                self._free.remove(slot)
                del self._slots[slot], self._written[slot]
        self._returned.append((slot, free))

    def returned(self) -> list[tuple[int, bool]]:
        """Return, once, which slots were asked back, and whether they were returned."""
        return drained(self._returned)

    def _slot(self, size: int) -> int:
        with self._lock:
            fitting = [
                slot
                for slot in self._free
                if size <= len(self._slots[slot]) <= max(MIN_SLOT, MAX_RATIO * size)
            ]
            if fitting:
                best = min(fitting, key=lambda slot: len(self._slots[slot]))
                self._free.remove(best)
                return best
        room = max(MIN_SLOT, 1 << (size - 1).bit_length())
        fd = memory_file(room)
        slot, self._made = self._made, self._made + 1
        self._slots[slot] = mmap.mmap(fd, room)
        self._announce(slot, fd)
        return slot


def _write(sink: pa.NativeFile, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


class SlotMapping:
    """The slots of others that this process has mapped; ``released``: the blocks that it does not read any more."""

    def __init__(self) -> None:
        self._maps: dict[tuple[int, int], mmap.mmap] = {}
        self.released: deque[int] = deque()

    def map(self, owner: int, slot: int, fd: int) -> None:
        """Map a slot; closes the descriptor."""
        # Shared and writable: a private map would go on showing its own copy of a page that was once written to.
        self._maps[owner, slot] = mmap.mmap(fd, os.fstat(fd).st_size)
        os.close(fd)

    def unmap(self, owner: int, slot: int) -> None:
        """Unmap a slot that will not be used again; its pages go with the last batch in them."""
        self._maps.pop((owner, slot), None)

    def read(self, ref: BlockRef) -> list[pa.RecordBatch]:
        """Return the batches of a block, where they lie. They stay valid as long as anybody has them."""
        view = np.frombuffer(self._maps[ref.owner, ref.slot], np.uint8, ref.length)
        # Runs in the thread that drops the last reference, maybe amid anything: it may do no more than this.
        weakref.finalize(view, self.released.append, ref.number).atexit = False
        return list(pa.ipc.open_stream(pa.py_buffer(view)))

    def drain_released(self) -> list[int]:
        """Return the numbers of the blocks that nobody here reads any more, once."""
        return drained(self.released)
