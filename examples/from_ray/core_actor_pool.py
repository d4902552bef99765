# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/actor-pool.py.
from headrace.compat import ray
from headrace.compat.ray.util import ActorPool


@ray.remote
class Actor:
    def double(self, n):
        return n * 2


a1, a2 = Actor.remote(), Actor.remote()
pool = ActorPool([a1, a2])
assert list(pool.map(lambda a, v: a.double.remote(v), [1, 2, 3, 4])) == [2, 4, 6, 8]
assert sorted(pool.map_unordered(lambda a, v: a.double.remote(v), [1, 2, 3])) == [2, 4, 6]
pool.submit(lambda a, v: a.double.remote(v), 5)
assert pool.get_next(timeout=20) == 10 and not pool.has_next()
idle = pool.pop_idle()
pool.push(idle)
