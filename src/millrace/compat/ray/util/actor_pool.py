"""Ray's ``ray.util.actor_pool``."""

from millrace.executor import ActorPool

__all__ = ["ActorPool"]
