"""For those who shard by hand: ``connect`` returns an ``Executor``, with ``put``, ``submit`` and actor pools."""

from headrace.engines.references import Ref
from headrace.tasks.actor_pool import ActorPool
from headrace.tasks.actors import ActorHandle
from headrace.tasks.connecting import connect
from headrace.tasks.executor import Executor
from headrace.tasks.futures import CallFuture

__all__ = ["ActorHandle", "ActorPool", "CallFuture", "Executor", "Ref", "connect"]
