# The calls are those of ray-project/ray, doc/source/ray-core/actors/async_api.rst.
import asyncio

from headrace.compat import ray


@ray.remote
class AsyncActor:
    async def run_concurrent(self, n):
        await asyncio.sleep(0.01)
        return n


@ray.remote(max_concurrency=2)
class ThreadedActor:
    def task_1(self):
        return 1

    def task_2(self):
        return 2


@ray.remote
def some_task():
    return 7


actor = AsyncActor.remote()
assert ray.get([actor.run_concurrent.remote(n) for n in range(4)]) == [0, 1, 2, 3]


async def main():
    assert await some_task.remote() == 7
    assert await actor.run_concurrent.remote(5) == 5
    done, _ = await asyncio.wait([asyncio.wrap_future(some_task.remote().future())])
    assert [each.result() for each in done] == [7]
    assert await asyncio.gather(*[actor.run_concurrent.remote(n) for n in range(3)]) == [0, 1, 2]


asyncio.run(main())
threaded = ThreadedActor.options(max_concurrency=3).remote()
assert ray.get([threaded.task_1.remote(), threaded.task_2.remote()]) == [1, 2]
