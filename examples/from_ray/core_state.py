# The calls are those of ray-project/ray, doc/source/ray-observability/user-guides/cli-sdk.rst.
from headrace.compat import ray
from headrace.compat.ray.util.state import list_actors, list_nodes


@ray.remote
def task():
    return 1


@ray.remote
class Actor:
    def ping(self):
        return 1


ray.init(address="auto", namespace="x") if ray.is_initialized() else ray.init()
actor = Actor.options(name="seen").remote()
assert ray.get([task.remote(), actor.ping.remote()]) == [1, 1]
actors = list_actors(filters=[("state", "=", "ALIVE")])
assert any(each["name"] == "seen" for each in actors)
assert len(list_nodes()) == 1
