import asyncio

import ray


@ray.remote
class Reader:
    async def __init__(self, name):
        await asyncio.sleep(0)
        self.name = name

    async def read(self):
        return self.name

    def plain(self):
        return self.name.upper()


@ray.remote
class Broken:
    async def __init__(self):
        raise ValueError("no such file")

    async def read(self):
        return 1


reader = Reader.remote("a")
print(ray.get([reader.read.remote(), reader.plain.remote()]))
try:
    ray.get(Broken.remote().read.remote())
except ray.exceptions.RayActorError:
    print("it could not be made")
