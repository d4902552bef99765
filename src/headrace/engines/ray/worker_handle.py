"""One worker of a pool, as the driver holds it: an actor, what it was sent, and what it was asked."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import ray
import ray.exceptions

from headrace.engines.pool import Message, WorkerHandle


class RayWorkerHandle(WorkerHandle):
    """One actor. ``answer`` and ``block`` are the references to what the last ``ask`` will return.

    ``evicted``: it made room for another stage. ``unreachable``: it could not be reached. ``node`` is Ray's
    identifier of its machine.
    """

    def __init__(self, number: int, actor: Any) -> None:
        super().__init__(number)
        self.placed = False
        self.actor = actor
        self.evicted = False
        self.unreachable = False
        self.node = ""
        self.pid = 0
        self._sent = 0
        self._sending = threading.Lock()
        self.ask()

    def send(self, message: Message, attached: dict[int, Any] | None = None) -> None:
        """See ``WorkerHandle``: with Ray's references, by number. If the actor is gone, the next answer says so."""
        with self._sending:
            if self.actor is None:
                return
            number, self._sent = self._sent, self._sent + 1
            with contextlib.suppress(ray.exceptions.RayError):
                self.actor.send.remote(number, message, attached or {})

    def ask(self) -> None:
        """Ask for the next messages."""
        self.answer, self.block = self.actor.poll.remote()

    def kill(self) -> None:
        """See ``WorkerHandle``."""
        with contextlib.suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def release(self) -> None:
        """Drop all references of Ray's: in a later session the same numbers stand for something else."""
        with self._sending:
            self.actor = self.answer = self.block = None
