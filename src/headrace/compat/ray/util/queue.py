"""Ray's ``ray.util.queue``: a queue that lives in an actor."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.compat.ray.calls import get, kill
from headrace.compat.ray.remote import ActorClass
from headrace.errors import ArgumentError

Empty, Full = queue.Empty, queue.Full


class _Queue:
    """What lives in the actor."""

    def __init__(self, maxsize: int) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def put(self, items: Sequence[Any], timeout: float | None, whole: bool) -> bool:
        """Put the items; say whether there was room within ``timeout`` seconds. ``whole``: for all, or for none."""
        room = self._items.maxsize - self._items.qsize()
        if whole and self._items.maxsize and room < len(items):
            return False
        try:
            for item in items:
                if timeout == 0:
                    self._items.put_nowait(item)
                else:
                    await asyncio.wait_for(self._items.put(item), timeout)
        except (TimeoutError, asyncio.QueueFull):
            return False
        return True

    async def get(self, count: int, timeout: float | None) -> list[Any] | None:
        """Return so many items, or None if they do not come within ``timeout`` seconds."""
        try:
            if timeout == 0:
                return (
                    [self._items.get_nowait() for _ in range(count)] if count <= self._items.qsize() else None
                )
            return [await asyncio.wait_for(self._items.get(), timeout) for _ in range(count)]
        except TimeoutError:
            return None

    async def qsize(self) -> int:
        """How many items there are."""
        return self._items.qsize()


class Queue:
    """A queue that may be passed to calls; ``queue.Full`` and ``queue.Empty`` are its errors.

    >>> from headrace.compat import ray
    >>> items = Queue(maxsize=3)
    >>> items.put("a")
    >>> items.get(), items.empty()
    ('a', True)
    >>> ray.shutdown()
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        self.actor = ActorClass(_Queue, {"num_cpus": 0, **(actor_options or {})}).remote(max(0, maxsize))

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item; ``Full`` if there is no room within ``timeout`` seconds, or at once without ``block``."""
        self._put([item], _waiting(block, timeout))

    def put_nowait(self, item: Any) -> None:
        """Put an item; ``Full`` if there is no room."""
        self._put([item], 0)

    def put_nowait_batch(self, items: Sequence[Any]) -> None:
        """Put all items, or ``Full``."""
        self._put(list(items), 0)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next item; ``Empty`` if none comes within ``timeout`` seconds, or at once without ``block``."""
        return self._get(1, _waiting(block, timeout))[0]

    def get_nowait(self) -> Any:
        """Take the next item; ``Empty`` if there is none."""
        return self._get(1, 0)[0]

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take so many items; ``Empty`` if there are fewer."""
        return self._get(num_items, 0)

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """``put``, awaited."""
        if not await self.actor.put.remote([item], _waiting(block, timeout), False):
            raise Full

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """``get``, awaited."""
        found = await self.actor.get.remote(1, _waiting(block, timeout))
        if found is None:
            raise Empty
        return found[0]

    def qsize(self) -> int:
        """How many items there are."""
        return int(get(self.actor.qsize.remote()))

    size = qsize

    def __len__(self) -> int:
        return self.qsize()

    def empty(self) -> bool:
        """Whether there are none."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there is no room."""
        return 0 < self.maxsize <= self.qsize()

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """End it; what is left in it is lost."""
        kill(self.actor)

    def _put(self, items: list[Any], timeout: float | None) -> None:
        if not get(self.actor.put.remote(items, timeout, len(items) > 1)):
            raise Full

    def _get(self, count: int, timeout: float | None) -> list[Any]:
        found = get(self.actor.get.remote(count, timeout))
        if found is None:
            raise Empty
        return list(found)


def _waiting(block: bool, timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ArgumentError(f"timeout={timeout!r}: it takes seconds, zero or more.")
    return timeout if block else 0
