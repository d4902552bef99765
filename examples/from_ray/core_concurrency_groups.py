# The calls are those of ray-project/ray, doc/source/ray-core/actors/concurrency_group_api.rst.
from headrace.compat import ray


@ray.remote(concurrency_groups={"io": 2, "compute": 4})
class AsyncIOActor:
    def __init__(self):
        pass

    @ray.method(concurrency_group="io")
    async def f1(self):
        return 1

    @ray.method(concurrency_group="compute")
    async def f2(self):
        return 2

    async def f3(self):
        return 3


actor = AsyncIOActor.remote()
assert ray.get([actor.f1.remote(), actor.f2.remote(), actor.f3.remote()]) == [1, 2, 3]
assert ray.get(actor.f2.options(concurrency_group="compute").remote()) == 2
