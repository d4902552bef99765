"""The driver's side of slots: their descriptors, which blocks lie in them, and which of them are too many."""

from __future__ import annotations

import os
from typing import Any

from headrace.core.work import BlockRef
from headrace.engines.block_registry import BlockRegistry

# Bytes of slots beyond what was in use at one time: the driver learns late which slots are free.
SPARE = 32 << 20
SPARE_PART = 8  # of a budget for blocks and spare slots together, spare is one part in so many at most

Slot = tuple[int, int]  # its owner, and its number there


def spare_of(budget: int) -> int:
    """Return how many bytes of a budget are for slots that nobody uses."""
    return min(SPARE, budget // SPARE_PART)


class SlotRegistry(BlockRegistry):
    """The blocks of an engine whose workers share slots: see ``slots``.

    What is in use and what is idle together may take what was in use at one time, and ``spare`` bytes.
    """

    def __init__(self, spare: int = SPARE) -> None:
        super().__init__()
        self._spare = spare
        self._fds: dict[Slot, int] = {}
        self._sizes: dict[Slot, int] = {}
        self._total = 0  # bytes of all slots, but for those that were asked back
        self._used = 0
        self._peak = 0  # the most that was in use at one time
        self._idle: dict[Slot, None] = {}  # slots without a block; the longest idle is the first
        self._returning: set[Slot] = set()  # slots that were asked back
        self._mapped: dict[int, set[Slot]] = {}  # by worker: the slots that it has mapped
        self._retired: list[tuple[int, int, int]] = []

    def add_slot(self, owner: int, slot: int, fd: int) -> None:
        """Register a new slot with its descriptor, which belongs to the registry from now on."""
        with self._lock:
            self._fds[owner, slot] = fd
            self._sizes[owner, slot] = 0

    def add(self, ref: BlockRef, held: Any = True) -> None:
        """Register a block that was written to a slot."""
        with self._lock:
            super().add(ref, held)
            slot = ref.owner, ref.slot
            self._idle.pop(slot, None)
            if slot not in self._returning:
                self._total += ref.size - self._sizes[slot]
            self._sizes[slot] = ref.size
            self._used += ref.size
            self._peak = max(self._peak, self._used)

    def surplus(self) -> list[Slot]:
        """Return the slots that their owners should return, the longest idle first."""
        with self._lock:
            asked = []
            while self._total > self._peak + self._spare and self._idle:
                slot = next(iter(self._idle))
                del self._idle[slot]
                self._returning.add(slot)
                self._total -= self._sizes[slot]
                asked.append(slot)
            return asked

    def slot_returned(self, owner: int, number: int, returned: bool) -> None:
        """A worker that was asked for a slot returned it, or uses it again."""
        with self._lock:
            slot = owner, number
            if slot not in self._returning:
                return
            self._returning.discard(slot)
            self._total += self._sizes[slot]
            if returned:
                self._close(slot)
            elif not self._holds_block(slot):
                self._idle[slot] = None

    def fd_to_send(self, ref: BlockRef, reader: int) -> int | None:
        """Return the descriptor that ``reader`` must be sent before it can read a block, if it has not got it."""
        with self._lock:
            mapped = self._mapped.setdefault(reader, set())
            if (ref.owner, ref.slot) in mapped:
                return None
            mapped.add((ref.owner, ref.slot))
            return self._fds.get((ref.owner, ref.slot))

    def retired(self) -> list[tuple[int, int, int]]:
        """Return (reader, owner, slot) where a worker still maps a slot that nobody will use again, once."""
        with self._lock:
            retired, self._retired = self._retired, []
            return retired

    def remove_dead(self, worker: int) -> list[BlockRef]:
        """A worker is gone: return the blocks that nobody reads now. What it wrote stays as long as it is read."""
        with self._lock:
            self._mapped.pop(worker, None)
            freed = super().remove_dead(worker)
            for slot in [slot for slot in self._fds if slot[0] == worker]:
                if not self._holds_block(slot):
                    self._close(slot)
            return freed

    def close(self) -> None:
        """Close every descriptor."""
        with self._lock:
            super().close()
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _removed(self, ref: BlockRef) -> None:
        slot = ref.owner, ref.slot
        self._used -= ref.size
        if ref.owner in self._dead:
            self._close(slot)
        elif slot not in self._returning:
            self._idle[slot] = None

    def _holds_block(self, slot: Slot) -> bool:
        return any((ref.owner, ref.slot) == slot for ref, _ in self._blocks.values())

    def _close(self, slot: Slot) -> None:
        if slot not in self._fds:
            return
        os.close(self._fds.pop(slot))
        size = self._sizes.pop(slot)
        if slot in self._returning:
            self._returning.discard(slot)
        else:
            self._total -= size
        self._idle.pop(slot, None)
        for reader, mapped in self._mapped.items():
            if slot in mapped:
                mapped.discard(slot)
                self._retired.append((reader, *slot))
