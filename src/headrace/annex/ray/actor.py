"""The class that actors are of, and the options that Ray gets for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import ray
import ray.exceptions

from headrace.annex.ray.host import ActorTransport
from headrace.core.engine_ports import PoolSpec
from headrace.engines.pool import Message, WorkerHandle
from headrace.errors import ArgumentError


class RayWorker:
    """The actor; see ``ActorTransport``, which it has inside because Ray wraps whatever its actors inherit."""

    def __init__(self, *args: Any) -> None:
        self._transport = ActorTransport(*args)

    @ray.method(concurrency_group="in", num_returns=0)  # type: ignore[untyped-decorator]
    def send(self, number: int, message: tuple[Any, ...], objects: Mapping[int, Any]) -> None:
        """See ``ActorTransport``."""
        self._transport.send(number, message, objects)

    @ray.method(concurrency_group="out", num_returns=2)  # type: ignore[untyped-decorator]
    def poll(self) -> tuple[list[tuple[Any, ...]], Any]:
        """See ``ActorTransport``."""
        return self._transport.poll()

    def end(self) -> None:
        """See ``ActorTransport``."""
        self._transport.end()


def options_of(spec: PoolSpec) -> dict[str, Any]:
    """Return Ray's options for each worker of a pool."""
    options: dict[str, Any] = {}
    if spec.num_gpus:
        options["num_gpus"] = spec.num_gpus
    if spec.memory:
        options["memory"] = spec.memory
    # An actor with no options about resources is placed where a core is free, and then takes none.
    if spec.num_cpus is not None or options or "resources" in spec.extra:
        options["num_cpus"] = spec.num_cpus or 0
    return options | dict(spec.extra)


def actor_class(options: Mapping[str, Any]) -> Any:
    """Return the class of actors with these options, which end with the driver and are replaced by their pool."""
    groups = {"in": 1, "out": 1}
    try:
        return ray.remote(**options, max_restarts=0, max_task_retries=0, concurrency_groups=groups)(RayWorker)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"Ray refuses these options, given by ray_remote_args= of a step or hr.Ray(remote_args=…): {error}"
        ) from error


class RayWorkerHandle(WorkerHandle):
    """One actor. ``answer`` and ``block`` are the references to what the last ``ask`` will return.

    ``evicted``: it made room for another stage. ``unreachable``: it could not be reached. ``node`` is Ray's
    identifier of its machine, and ``memory`` the bytes that it took last.
    """

    def __init__(self, number: int, actor: Any) -> None:
        super().__init__(number)
        self.placed = False
        self.actor = actor
        self.evicted = False
        self.unreachable = False
        self.node = ""
        self.pid = self.memory = 0
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
