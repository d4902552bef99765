"""An async generator as __call__."""

import asyncio

import ray


class Fetch:
    async def __call__(self, batch):
        values = await asyncio.gather(*(self.one(i) for i in batch["id"]))
        yield {"value": list(values)}

    async def one(self, i):
        await asyncio.sleep(0)
        return int(i) * 3


print(
    sorted(
        row["value"] for row in ray.data.range(6).map_batches(Fetch, concurrency=1, batch_size=2).take_all()
    )
)
