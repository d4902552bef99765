# The calls are those of ray-project/ray, doc/source/data/transforming-data.rst.
import asyncio

from headrace.compat import ray


class AsyncFetcher:
    async def __call__(self, batch):
        async def double(value):
            await asyncio.sleep(0)
            return 2 * value

        tasks = [asyncio.create_task(double(value)) for value in batch["id"]]
        for done in asyncio.as_completed(tasks):
            yield {"double": [await done]}


ds = ray.data.range(6).map_batches(AsyncFetcher, batch_size=3, concurrency=1, max_concurrency=2)
assert sorted(row["double"] for row in ds.take_all()) == [0, 2, 4, 6, 8, 10]
