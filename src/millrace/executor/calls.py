"""One call on its way: what it needs, what it waits for, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.engines.links import Ref
from millrace.executor.admission import Needs
from millrace.executor.futures import CallFuture

if TYPE_CHECKING:
    from millrace.engines.kept import Kept


@dataclass(eq=False, slots=True)
class Call:
    """A call of a function, or of an actor's method; ``met`` are the references and futures in its arguments."""

    label: str
    kept: Kept
    met: Sequence[Any]
    future: CallFuture[Any]
    max_retries: int
    needs: Needs = field(default_factory=Needs)
    threads: int = 1
    deaths: int = 0
    begun: bool = False
    asked: bool = False  # it waits to be admitted
    pending: int = 0  # how many futures it still waits for

    def wait_for_others(self, then: Callable[[], None]) -> None:
        """Count the futures among the arguments that are not done, and have ``then`` called as each is."""
        others = [thing for thing in self.met if isinstance(thing, CallFuture)]
        self.pending = len(others)
        for other in others:
            other.add_done_callback(lambda _: then())

    def link(self) -> None:
        """Now that all of them are done: what the arguments refer to is here. Raises what one of them raised."""
        self.kept.links = tuple(_kept(thing) for thing in self.met)

    @property
    def may_be_tried_again(self) -> bool:
        """Whether it may end another worker."""
        return self.max_retries < 0 or self.deaths <= self.max_retries

    def begin(self) -> bool:
        """Mark it as running; False if it was cancelled."""
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        return self.begun

    def succeed(self, kept: Kept) -> None:
        """It returned something."""
        self.let_go()
        with suppress(InvalidStateError):
            self.future.set_result(kept)

    def fail(self, error: BaseException) -> None:
        """It raised something, or cannot be carried out."""
        self.let_go()
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def let_go(self) -> None:
        """It is over: nothing of it is needed, though the user may have its future for long."""
        self.met = ()
        self.future.forget()


def _kept(thing: Any) -> Kept:
    if isinstance(thing, Ref):
        return thing.holder  # type: ignore[return-value]
    if thing.cancelled():
        raise CancelledError(f"{thing!r}, on which it waited, was cancelled")
    error = thing.exception(0)
    if error is not None:
        raise error
    return thing.kept  # type: ignore[no-any-return]
