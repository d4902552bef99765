"""The future of a call: its result is made again in the driver when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.engines.references import reduce_reference

if TYPE_CHECKING:
    from headrace.engines.object_store import StoredObject

T = TypeVar("T")


def _ignore() -> None:
    """Nobody wants to know of it."""


class CallFuture(Future[T], Generic[T]):
    """What ``submit`` returns. It may be an argument of other calls: they wait for it, and get its result.

    The result goes from worker to worker without being unpickled in the driver. If the call failed, so do those that
    wait for it.
    """

    def __init__(self, label: str, store: object = None) -> None:
        super().__init__()
        self._label = label
        self.store = store  # where its result will be
        self._when_cancelled: Callable[[], None] = _ignore

    def result(self, timeout: float | None = None) -> T:
        """Return what the call returned, or raise what it raised, with its traceback in the worker.

        Each time it is unpickled anew: what was changed in one result is not changed in the next.
        """
        stored: Any = super().result(timeout)
        return stored.value()  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancel the call if it has not begun; return whether it is cancelled."""
        was = self.cancelled()
        now = super().cancel()
        if now and not was:
            self._when_cancelled()
        return now

    def on_cancel(self, cancelled: Callable[[], None]) -> None:
        """Have ``cancelled`` called when somebody cancels the call."""
        self._when_cancelled = cancelled

    def drop_callback(self) -> None:
        """Call nothing any more when it is cancelled."""
        self._when_cancelled = _ignore

    @property
    def stored(self) -> StoredObject:
        """The result as it came; for a call that ended well."""
        stored: Any = super().result(0)
        return stored  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return reduce_reference(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._label}: {self._state.lower()}>"
