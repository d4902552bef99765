"""The engine whose pools are made of actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from millrace.core.ports import PoolSpec
from millrace.core.work import BlockRef
from millrace.engines.lending import Lending
from millrace.engines.ray.cluster import Drains
from millrace.engines.ray.kept import RayKeeper
from millrace.engines.ray.pool import RayPool

Notify = Callable[[int, Any], None]


class RayEngine:
    """Pools of actors on the cluster that this process is connected to; see ``ray_cluster.connect``.

    ``pool_timeout``: seconds in which the cluster has to place as many workers as a pool cannot do without.
    """

    def __init__(self, *, pool_timeout: float = 600.0) -> None:
        self._pools: list[RayPool] = []
        self._lending = Lending()
        self._drains = Drains()
        self._pool_timeout = pool_timeout

    def start(self, spec: PoolSpec, notify: Notify) -> RayPool:
        """See ``Engine.start``. Workers join the pool when the cluster has placed them."""
        pool = RayPool(
            spec, notify, self._lending, self._drains, self._may_grow, self._make_room, self._pool_timeout
        )
        self._pools = [pool for pool in self._pools if not pool.closed]
        self._pools.append(pool)
        return pool

    def keeper(self, dropped: Callable[[int, set[int]], None]) -> RayKeeper:
        """Return who keeps values that workers are lent; ``dropped`` is told of those that nobody has any more."""
        return RayKeeper(dropped)

    def end(self, pool: RayPool, *, kill: bool) -> None:
        """Close a pool, and do not wait for it."""
        pool.begin_to_close(kill=kill)

    def forget(self, number: int, workers: Collection[int]) -> None:
        """Nobody has a kept value any more: tell the workers that know it."""
        for worker in workers:
            for pool in self._pools:
                pool.tell(worker, ("forget", number))

    def _may_grow(self) -> bool:
        """Say whether every pool has what it cannot do without: only then do pools take more.

        Somebody who asks one of them has started all that there will be.
        """
        asked = any(pool.asked for pool in self._pools)
        return asked and all(pool.begun and not pool.short for pool in self._pools)

    def _make_room(self) -> None:
        """A pool has nobody, as machines went and others hold what is left: have them give some of it up."""
        for pool in self._pools:
            pool.give_room()

    def near(self, worker: int, other: int) -> bool:
        """See ``Engine.near``."""
        places = [place for pool in self._pools for place in (pool.node(worker), pool.node(other)) if place]
        return len(set(places)) == 1

    def keep(self, ref: BlockRef) -> None:
        """See ``Engine.keep``."""
        self._lending.keep(ref)

    def drop(self, ref: BlockRef) -> None:
        """See ``Engine.drop``."""
        self._lending.drop(ref)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``; the cluster stays as it is."""
        for pool in self._pools:
            pool.begin_to_close(kill=kill)
        for pool in self._pools:
            pool.close(kill=kill)
        self._pools = []
        self._lending.close()
