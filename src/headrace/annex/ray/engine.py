"""The engine whose pools are made of actors of a Ray cluster."""

from __future__ import annotations

from headrace.annex.ray.cluster import DrainingNodes
from headrace.annex.ray.pool import RayPool
from headrace.core.engine_ports import PoolSpec
from headrace.core.work import BlockRef
from headrace.engines.block_registry import BlockRegistry
from headrace.engines.pool import Notify


class RayEngine:
    """Pools of actors on the cluster that this process is connected to; see ``cluster.connect``.

    ``pool_timeout``: seconds in which the cluster has to place as many workers as a pool cannot do without.
    """

    def __init__(self, *, pool_timeout: float = 600.0) -> None:
        self._pools: list[RayPool] = []
        self._blocks = BlockRegistry()
        self._draining = DrainingNodes()
        self._pool_timeout = pool_timeout

    def start(self, spec: PoolSpec, notify: Notify) -> RayPool:
        """See ``Engine.start``. Workers join the pool when the cluster has placed them."""
        pool = RayPool(
            spec, notify, self._blocks, self._draining, self._may_grow, self._make_room, self._pool_timeout
        )
        self._pools = [pool for pool in self._pools if not pool.closed]
        self._pools.append(pool)
        return pool

    def _may_grow(self) -> bool:
        """Say whether every pool has what it cannot do without: only then do pools take more.

        Whoever asks one of them for its workers has started all pools that there will be.
        """
        asked = any(pool.asked for pool in self._pools)
        return asked and all(pool.begun and not pool.short for pool in self._pools)

    def _make_room(self) -> None:
        """A pool has no workers, as machines went and other pools hold what is left: have those give room."""
        for pool in self._pools:
            pool.give_room()

    def same_machine(self, worker: int, other: int) -> bool:
        """See ``Engine.same_machine``."""
        places = [place for pool in self._pools for place in (pool.node(worker), pool.node(other)) if place]
        return len(set(places)) == 1

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""
        self._blocks.hold(ref)

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        self._blocks.drop(ref)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``; the cluster stays as it is."""
        for pool in self._pools:
            pool.begin_to_close(kill=kill)
        for pool in self._pools:
            pool.close(kill=kill)
        self._pools = []
        self._blocks.close()
