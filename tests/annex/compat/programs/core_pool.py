"""ActorPool: ordered, unordered, by hand."""

import ray
from ray.util import ActorPool


@ray.remote
class Worker:
    def double(self, x):
        return x * 2


a, b = Worker.remote(), Worker.remote()
pool = ActorPool([a, b])
print(list(pool.map(lambda actor, value: actor.double.remote(value), range(6))))
print(sorted(pool.map_unordered(lambda actor, value: actor.double.remote(value), range(6))))
pool.submit(lambda actor, value: actor.double.remote(value), 10)
pool.submit(lambda actor, value: actor.double.remote(value), 20)
pool.submit(lambda actor, value: actor.double.remote(value), 30)
print(pool.has_next(), pool.get_next(), pool.get_next(), pool.get_next(), pool.has_next())
print(pool.has_free(), pool.pop_idle() is not None, pool.pop_idle() is not None, pool.pop_idle())
pool.push(a)
pool.submit(lambda actor, value: actor.double.remote(value), 4)
print(pool.get_next_unordered(), pool.has_next())
try:
    pool.get_next()
except StopIteration:
    print("StopIteration")
try:
    pool.push(a)
except ValueError:
    print("ValueError")
