"""For those who shard by hand: ``connect`` returns an ``Executor``, with ``put``, ``submit`` and actor pools."""

from millrace.engines.links import Ref
from millrace.executor.actors import ActorHandle
from millrace.executor.connecting import connect
from millrace.executor.executor import Executor
from millrace.executor.futures import CallFuture
from millrace.executor.pool import ActorPool

__all__ = ["ActorHandle", "ActorPool", "CallFuture", "Executor", "Ref", "connect"]
