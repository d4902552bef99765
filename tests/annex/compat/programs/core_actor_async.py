"""Async methods run side by side in one actor."""

import asyncio

import ray


@ray.remote
class Meeting:
    def __init__(self):
        self.here, self.all_here = 0, asyncio.Event()

    async def arrive(self, name, expected):
        self.here += 1
        if self.here == expected:
            self.all_here.set()
        await self.all_here.wait()
        return name

    async def count(self):
        return self.here

    async def stream(self, n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i


meeting = Meeting.remote()
print(ray.get([meeting.arrive.remote(name, 3) for name in "abc"]), ray.get(meeting.count.remote()))
print([ray.get(ref) for ref in meeting.stream.remote(3)])


async def main():
    one, two = await asyncio.gather(meeting.count.remote(), meeting.arrive.remote("d", 3))
    return one, two, await ray.put(5)


print(asyncio.run(main()))
