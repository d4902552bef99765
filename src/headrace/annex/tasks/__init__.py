"""For those who shard by hand: ``connect`` returns an ``Executor``, with ``put``, ``submit`` and actor pools."""

from headrace.annex.tasks.actor_pool import ActorPool
from headrace.annex.tasks.actors import ActorHandle
from headrace.annex.tasks.executor import Executor, connect
from headrace.annex.tasks.futures import CallFuture
from headrace.engines.references import Ref

__all__ = ["ActorHandle", "ActorPool", "CallFuture", "Executor", "Ref", "connect"]
