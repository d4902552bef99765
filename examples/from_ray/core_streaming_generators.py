# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/streaming_generator.py.
import asyncio

from headrace.compat import ray


@ray.remote
def task():
    for i in range(5):
        yield i


@ray.remote
class Actor:
    def f(self):
        for i in range(5):
            yield i

    async def g(self):
        for i in range(3):
            await asyncio.sleep(0)
            yield i


assert [ray.get(ref) for ref in task.remote()] == list(range(5))
generator = task.remote()
assert ray.get(next(generator)) == 0
actor = Actor.remote()
assert [ray.get(ref) for ref in actor.f.remote()] == list(range(5))
assert [ray.get(ref) for ref in actor.g.remote()] == [0, 1, 2]


async def consume():
    return [await ref async for ref in task.remote()]


assert asyncio.run(consume()) == list(range(5))
ready, _ = ray.wait([task.remote()], timeout=20, fetch_local=False)
assert len(ready) == 1


@ray.remote
def throws():
    yield 1
    raise ValueError("late")


stream = throws.remote()
assert ray.get(next(stream)) == 1
try:
    ray.get(next(stream))
    raise AssertionError
except ValueError:
    pass
limited = task.options(_generator_backpressure_num_objects=2).remote()
assert len(list(limited)) == 5
ray.get(task.remote().completed())
