# The calls are those of ray-project/ray, doc/source/ray-core/actors/terminating-actors.rst.
from headrace.compat import ray


@ray.remote
class Actor:
    def f(self):
        return 1

    def leave(self):
        ray.actor.exit_actor()


actor = Actor.remote()
ray.get(actor.__ray_ready__.remote())
assert ray.get(actor.f.remote()) == 1
actor.__ray_terminate__.remote()
try:
    ray.get(actor.f.remote())
    raise AssertionError
except ray.exceptions.RayActorError:
    pass
other = Actor.remote()
other.leave.remote()
try:
    ray.get(other.f.remote())
    raise AssertionError
except ray.exceptions.RayActorError:
    pass
