"""Async and threaded actors, names, and what methods can be asked for."""

import asyncio
import threading

import ray


@ray.remote
class Gate:
    def __init__(self):
        self.event = asyncio.Event()
        self.waiting = 0

    async def wait_for_it(self, name):
        self.waiting += 1
        await self.event.wait()
        return name

    async def open(self):
        while self.waiting < 3:
            await asyncio.sleep(0.01)
        self.event.set()
        return self.waiting

    def plain(self):
        return "plain"

    async def fails(self):
        raise ValueError("async")

    async def nested(self):
        return await double.remote(4), await asyncio.gather(double.remote(1), double.remote(2))


@ray.remote
def double(x):
    return 2 * x


gate = Gate.remote()
refs = [gate.wait_for_it.remote(i) for i in range(3)]
print(ray.get(gate.open.remote()), ray.get(refs), ray.get(gate.plain.remote()))
try:
    ray.get(gate.fails.remote())
except ValueError as error:
    print("ValueError", error.cause)
print(ray.get(gate.nested.remote()))


@ray.remote(max_concurrency=2)
class Threaded:
    def __init__(self):
        self.barrier = threading.Barrier(2)

    def meet(self):
        return self.barrier.wait(30) in (0, 1)


threaded = Threaded.remote()
print(ray.get([threaded.meet.remote(), threaded.meet.remote()]))


@ray.remote(max_concurrency=1)
class OneByOne:
    def __init__(self):
        self.inside = 0
        self.most = 0

    async def work(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1
        return self.most


one = OneByOne.remote()
print(ray.get([one.work.remote() for _ in range(4)]))


@ray.remote
class Named:
    def __init__(self, n=0):
        self.n = n

    def add(self):
        self.n += 1
        return self.n


named = Named.options(name="counter").remote(5)
print(ray.get(ray.get_actor("counter").add.remote()), ray.get(named.add.remote()))


@ray.remote
def finds_it():
    return ray.get(ray.get_actor("counter").add.remote())


print(ray.get(finds_it.remote()))
try:
    Named.options(name="counter").remote()
except ValueError as error:
    print("ValueError", "counter" in str(error))
again = Named.options(name="counter", get_if_exists=True).remote(100)
print(ray.get(again.add.remote()))
fresh = Named.options(name="fresh", get_if_exists=True).remote(100)
print(ray.get(fresh.add.remote()))
try:
    ray.get_actor("nobody")
except ValueError:
    print("ValueError")
ray.kill(fresh)
kept = Named.options(name="kept", lifetime="detached").remote(1)
ray.get(kept.add.remote())
del kept
print(ray.get(ray.get_actor("kept").add.remote()))
print(ray.get(named.__ray_ready__.remote()))
print(ray.get(named.__ray_call__.remote(lambda self, k: self.n + k, 1000)))
print(ray.get(named.add.options(name="shown").remote()))
