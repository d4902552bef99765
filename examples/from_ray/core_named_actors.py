# The calls are those of ray-project/ray, doc/source/ray-core/actors/named-actors.rst.
from headrace.compat import ray

ray.init(namespace="colors")


@ray.remote
class Counter:
    def __init__(self, value=0):
        self.value = value

    def inc(self):
        self.value += 1
        return self.value


counter = Counter.options(name="CounterActor", lifetime="detached").remote(3)
assert ray.get(ray.get_actor("CounterActor").inc.remote()) == 4
same = Counter.options(name="CounterActor", get_if_exists=True).remote(99)
assert ray.get(same.inc.remote()) == 5
try:
    ray.get_actor("nobody")
    raise AssertionError
except ValueError:
    pass
assert "CounterActor" in ray.util.list_named_actors()
other = Counter.options(name="other", namespace="colors").remote()
assert ray.get(ray.get_actor("other", namespace="colors").inc.remote()) == 1
ray.kill(counter)
