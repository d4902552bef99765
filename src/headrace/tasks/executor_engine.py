"""What an executor needs of an engine: workers, each in a pool of its own, and a store of values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from headrace.core.engine_ports import PoolSpec

if TYPE_CHECKING:
    from headrace.engines.object_store import ObjectStore


class TaskWorker(Protocol):
    """A pool of one worker: the one that replaces a worker that died belongs to the same pool."""

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """See ``Pool.submit``. A stored value is sent before the call, which has its number."""
        ...

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``; stored values are sent as for ``submit``."""
        ...

    most_ahead: int  # calls that its worker may be sent before it can begin them; 0: it takes one at a time

    def submit_ahead(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Future[Any]]:
        """See ``LocalPool.submit_ahead``."""
        ...

    def take_back(self) -> None:
        """See ``LocalPool.take_back``."""
        ...

    def kill(self, worker: int, reason: str) -> None:
        """See ``Pool.kill``."""
        ...


class ExecutorEngine(Protocol):
    """See ``LocalEngine`` and ``RayEngine``."""

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> Any:
        """See ``Engine.start``."""
        ...

    def end(self, pool: Any, *, kill: bool) -> None:
        """Close a pool; it may take a while until that has happened."""
        ...

    def object_store(self, on_release: Callable[[int, set[int]], None]) -> ObjectStore:
        """Return a store for values; ``on_release`` gets the number of one that nobody refers to, and who has it."""
        ...

    def forget(self, number: int, workers: Collection[int]) -> None:
        """Have workers forget a value that is not needed any more."""
        ...

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        ...
