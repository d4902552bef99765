"""One worker of a pool, as the driver holds it: an actor, what it was sent, and what it was asked."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.exceptions

from millrace.engines.ray.kept import RayKept


@dataclass(slots=True)
class Member:
    """One actor, as the driver holds it."""

    number: int
    actor: Any
    answer: Any  # what it has to tell
    block: Any  # and the block that may come with it
    born: int
    calls: dict[int, Future[Any]] = field(default_factory=dict)
    here: bool = False
    leaving: bool = False  # its machine is about to go: it gets nothing more to do
    evicted: bool = False  # it made room for another stage
    unsure: bool = False  # it could not be reached
    node: str = ""
    sentence: str = ""
    preparing: str = "starting"
    pid: int = 0
    sent: int = 0
    sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_ready(self) -> bool:
        """True if it may be given something to do."""
        return self.here and not self.leaving

    def send(self, message: tuple[Any, ...], objects: dict[int, Any] | None = None) -> None:
        """Send a message. If the actor is gone, who listens will hear of it."""
        with self.sending:
            if self.actor is None:
                return
            number, self.sent = self.sent, self.sent + 1
            with contextlib.suppress(ray.exceptions.RayError):
                self.actor.send.remote(number, message, objects or {})

    def ask(self) -> None:
        """Ask what there is to tell."""
        self.answer, self.block = self.actor.poll.remote()

    def kill(self) -> None:
        """End the actor, at once."""
        with contextlib.suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def let_go(self) -> None:
        """Hold nothing of Ray's any more: in a later session the same numbers stand for something else."""
        with self.sending:
            self.actor = self.answer = self.block = None

    def hand_over(self, kept: RayKept) -> None:
        """Send a kept value, and before it those that it refers to, unless it knows them."""
        for link in kept.links:
            assert isinstance(link, RayKept)
            self.hand_over(link)
        if self.number in kept.known:
            return
        if not kept.once:
            kept.known.add(self.number)
        self.send(*kept.to_send())

    def fail(self, error: BaseException) -> None:
        """Its calls will not be answered any more."""
        for future in list(self.calls.values()):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
        self.calls.clear()
