"""Which blocks there are, and who reads them, where an object store keeps the memory. Pure, and thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from millrace.core.work import Block, BlockRef, Piece


class Lending:
    """Keeps hold of each block's object until those it was lent to have let go of it, or it is dropped.

    >>> lending, ref = Lending(), BlockRef(1, 0, 800, 7)
    >>> lending.add(ref, "the object")
    >>> lending.lend(ref, reader=2)
    'the object'
    >>> lending.unread([7], reader=2)
    [7]
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[int, Any] = {}
        self._readers: dict[int, list[int]] = {}  # the workers that a block was lent to, each as often
        self._due: dict[int, int] = {}  # how often a block will still be lent, if that is known

    def add(self, ref: BlockRef, held: Any) -> None:
        """A block was laid; ``held`` keeps it alive."""
        with self._lock:
            self._objects[ref.number] = held

    def lend(self, ref: BlockRef, reader: int) -> Any | None:
        """Note that ``reader`` gets a block, and return its object; None if it is gone."""
        with self._lock:
            if ref.number not in self._objects:
                return None
            self._was_due(ref.number)
            self._readers.setdefault(ref.number, []).append(reader)
            return self._objects[ref.number]

    def unread(self, numbers: Iterable[int], reader: int) -> list[int]:
        """``reader`` let go of blocks; return those that nobody reads now."""
        with self._lock:
            freed = []
            for number in numbers:
                readers = self._readers.get(number, [])
                if reader not in readers:
                    continue
                readers.remove(reader)
                if self._is_idle(number):
                    freed += self._forget(number)
            return freed

    def keep(self, ref: BlockRef) -> None:
        """Hold on to a block until it was lent twice, though its first reader lets go of it."""
        with self._lock:
            self._due[ref.number] = 2

    def drop(self, ref: BlockRef) -> list[int]:
        """Forget a block that will not be lent any more, unless somebody reads it."""
        with self._lock:
            self._due.pop(ref.number, None)
            return self._forget(ref.number) if self._is_idle(ref.number) else []

    def missed(self, ref: BlockRef) -> list[int]:
        """Somebody who was to be lent a block is gone: forget it, unless it is read or due elsewhere."""
        with self._lock:
            self._was_due(ref.number)
            return self._forget(ref.number) if self._is_idle(ref.number) else []

    def bury(self, reader: int) -> list[int]:
        """A worker is gone: return the blocks that nobody reads now."""
        with self._lock:
            lent = [number for number, readers in self._readers.items() for each in readers if each == reader]
            return self.unread(lent, reader)

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._objects.clear()
            self._readers.clear()
            self._due.clear()

    def _was_due(self, number: int) -> None:
        if self._due.get(number):
            self._due[number] -= 1

    def _is_idle(self, number: int) -> bool:
        return number in self._objects and not self._readers.get(number) and not self._due.get(number)

    def _forget(self, number: int) -> list[int]:
        self._objects.pop(number, None)
        self._readers.pop(number, None)
        self._due.pop(number, None)
        return [number]


def lent_by(args: Sequence[Any]) -> list[BlockRef]:
    """Return the blocks that a call's arguments speak of."""
    found: list[BlockRef] = []
    for value in args:
        if isinstance(value, Piece):
            found += lent_by(value.blocks)
        if isinstance(value, Block):
            value = value.ref
        if isinstance(value, BlockRef):
            found.append(value)
    return found
