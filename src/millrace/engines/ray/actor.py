"""The class that actors are of, and what Ray is told about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
import ray.exceptions
import ray.util

from millrace.core.ports import PoolSpec
from millrace.engines.ray.host import RayHost
from millrace.engines.ray.words import first_line
from millrace.errors import ArgumentError, NodeLost

LOST_AFTER = 600.0  # seconds after which a block that does not come counts as lost


class Here:
    """See ``millrace.engines.ray.host.Place``."""

    def fetch(self, held: Any) -> Any:
        """See ``Place``."""
        try:
            return ray.get(held, timeout=LOST_AFTER)
        except ray.exceptions.RayError as error:
            raise NodeLost(f"a block was lost: {first_line(error)}") from None

    def prefetch(self, held: Any) -> None:
        """See ``Place``."""
        ray.wait([held], timeout=0, fetch_local=True)

    def devices(self) -> tuple[str, ...]:
        """See ``Place``."""
        return tuple(map(str, ray.get_gpu_ids()))

    def name(self) -> str:
        """See ``Place``."""
        return str(ray.util.get_node_ip_address())

    def node(self) -> str:
        """See ``Place``."""
        return str(ray.get_runtime_context().get_node_id())


class RayWorker:
    """The actor; see ``RayHost``. (Ray wraps whatever its actors inherit, so it has the host inside.)"""

    def __init__(self, *args: Any) -> None:
        self._host = RayHost(Here(), *args)

    @ray.method(concurrency_group="in", num_returns=0)  # type: ignore[untyped-decorator]
    def send(self, number: int, message: tuple[Any, ...], objects: Mapping[int, Any]) -> None:
        """See ``RayHost``."""
        self._host.send(number, message, objects)

    @ray.method(concurrency_group="out", num_returns=2)  # type: ignore[untyped-decorator]
    def poll(self) -> tuple[list[tuple[Any, ...]], Any]:
        """See ``RayHost``."""
        return self._host.poll()

    def end(self) -> None:
        """See ``RayHost``."""
        self._host.end()


def options_of(spec: PoolSpec) -> dict[str, Any]:
    """Return what Ray is told about each worker of a pool."""
    options: dict[str, Any] = {}
    if spec.num_gpus:
        options["num_gpus"] = spec.num_gpus
    if spec.memory:
        options["memory"] = spec.memory
    # Without a word about resources an actor is placed where a core is free, and then takes none.
    if spec.num_cpus is not None or options or "resources" in spec.extra:
        options["num_cpus"] = spec.num_cpus or 0
    return options | dict(spec.extra)


def actor_class(options: Mapping[str, Any]) -> Any:
    """Return the class of actors with these options, which end with the driver and are replaced by their pool."""
    groups = {"in": 1, "out": 1}
    try:
        return ray.remote(**options, max_restarts=0, max_task_retries=0, concurrency_groups=groups)(RayWorker)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"ray_remote_args: Ray does not take these: {error}") from error
