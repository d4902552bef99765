"""What an executor needs of an engine: workers, each in a pool of its own, and values that they are lent."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from millrace.core.ports import PoolSpec

if TYPE_CHECKING:
    from millrace.engines.kept import Keeper


class Worker(Protocol):
    """A pool of one: who takes the place of a worker that died is the same ``Worker``."""

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """See ``Pool.submit``. Values that are kept travel as their numbers, after what they stand for."""
        ...


class Ground(Protocol):
    """See ``LocalEngine`` and ``RayEngine``."""

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> Any:
        """See ``Engine.start``."""
        ...

    def end(self, pool: Any, *, kill: bool) -> None:
        """Close a pool; it may take a while until that has happened."""
        ...

    def keeper(self, dropped: Callable[[int, set[int]], None]) -> Keeper:
        """Return who keeps values; ``dropped`` is told their numbers, and who knows them, when nobody has them."""
        ...

    def forget(self, number: int, workers: Collection[int]) -> None:
        """Tell workers that a value is not needed any more."""
        ...

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        ...
