"""Which blocks there are, and who reads them. Pure, and thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.core.work import Block, BlockRef, Task


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
        if isinstance(value, Block):
            value = value.ref
        if isinstance(value, BlockRef):
            found.append(value)
    return found
