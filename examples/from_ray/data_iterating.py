# The calls are those of ray-project/ray, doc/source/data/iterating-over-data.rst.
import torch

from headrace.compat import ray

ds = ray.data.range(10).map(lambda row: {"x": float(row["id"]), "y": row["id"]})
assert sum(row["y"] for row in ds.iter_rows()) == 45
for batch in ds.iter_batches(batch_size=4, batch_format="numpy", prefetch_batches=1):
    assert set(batch) == {"x", "y"}
for frame in ds.iter_batches(batch_size=4, batch_format="pandas", drop_last=True):
    assert len(frame) == 4
seen = 0
for batch in ds.iter_torch_batches(
    batch_size=4, dtypes={"x": torch.float32}, local_shuffle_buffer_size=8, local_shuffle_seed=1
):
    assert batch["x"].dtype == torch.float32
    seen += len(batch["y"])
assert seen == 10


@ray.remote
class Worker:
    def train(self, data_iterator):
        rows = 0
        for batch in data_iterator.iter_batches(batch_size=2):
            rows += len(batch["y"])
        return rows


shards = ds.streaming_split(2, equal=True)
workers = [Worker.remote() for _ in range(2)]
assert ray.get([worker.train.remote(shard) for worker, shard in zip(workers, shards)]) == [5, 5]
