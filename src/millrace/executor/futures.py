"""The future of a call: its result is made again in the driver when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.engines.links import link

if TYPE_CHECKING:
    from millrace.engines.kept import Kept

T = TypeVar("T")


def _nobody() -> None:
    """Is told nothing."""


class CallFuture(Future[T], Generic[T]):
    """What ``submit`` returns. It may be an argument of other calls: they wait for it, and get its result.

    The result goes from worker to worker without a stay in the driver. If the call failed, so do those that wait
    for it.
    """

    def __init__(self, label: str, owner: object = None) -> None:
        super().__init__()
        self._label = label
        self.owner = owner  # whose results have their numbers from there
        self._cancelled: Callable[[], None] = _nobody

    def result(self, timeout: float | None = None) -> T:
        """Return what the call returned, or raise what it raised, with its traceback in the worker.

        Who asks again gets it as it was returned, whatever became of the first.
        """
        kept: Any = super().result(timeout)
        return kept.value()  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancel the call if it has not begun; return whether it is cancelled."""
        was = self.cancelled()
        now = super().cancel()
        if now and not was:
            self._cancelled()
        return now

    def on_cancel(self, cancelled: Callable[[], None]) -> None:
        """Have ``cancelled`` called when somebody cancels the call."""
        self._cancelled = cancelled

    def forget(self) -> None:
        """Nobody has to be told any more."""
        self._cancelled = _nobody

    @property
    def kept(self) -> Kept:
        """The result as it came; for a call that ended well."""
        kept: Any = super().result(0)
        return kept  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return link(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._label}: {self._state.lower()}>"
