"""One call on its way: what it needs, what it waits for, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.engines.references import Ref
from headrace.tasks.admission import Needs
from headrace.tasks.futures import CallFuture

if TYPE_CHECKING:
    from headrace.engines.object_store import StoredObject


@dataclass(eq=False, slots=True)
class TaskCall:
    """A call of a function, or of an actor's method; ``references`` are those and the futures in its arguments."""

    label: str
    stored: StoredObject
    references: Sequence[Any]
    future: CallFuture[Any]
    max_retries: int
    needs: Needs = field(default_factory=Needs)
    threads: int = 1
    deaths: int = 0
    begun: bool = False
    requested: bool = False  # it waits for admission
    pending: int = 0  # how many futures it still waits for

    def wait_for_arguments(self, then: Callable[[], None]) -> None:
        """Count the futures among the arguments that are not done, and have ``then`` called as each is."""
        futures = [argument for argument in self.references if isinstance(argument, CallFuture)]
        self.pending = len(futures)
        for future in futures:
            future.add_done_callback(lambda _: then())

    def link_arguments(self) -> None:
        """All of these are done: link the stored call to their results. Raises what one of them raised."""
        self.stored.links = tuple(_stored(argument) for argument in self.references)

    @property
    def may_be_tried_again(self) -> bool:
        """Whether it may be sent to another worker after one that it ended."""
        return self.max_retries < 0 or self.deaths <= self.max_retries

    def begin(self) -> bool:
        """Mark it as running; False if it was cancelled."""
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        return self.begun

    def succeed(self, stored: StoredObject) -> None:
        """It returned something."""
        self.release()
        with suppress(InvalidStateError):
            self.future.set_result(stored)

    def fail(self, error: BaseException) -> None:
        """It raised something, or cannot be carried out."""
        self.release()
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def release(self) -> None:
        """It is over: drop what it refers to, though the user may have its future for long."""
        self.references = ()
        self.future.drop_callback()


def _stored(argument: Any) -> StoredObject:
    if isinstance(argument, Ref):
        return argument.holder  # type: ignore[return-value]
    if argument.cancelled():
        raise CancelledError(f"{argument!r}, on which it waited, was cancelled")
    error = argument.exception(0)
    if error is not None:
        raise error
    return argument.stored  # type: ignore[no-any-return]
