# The calls are those of ray-project/ray, doc/source/data/working-with-tensors.rst.
import numpy as np

from headrace.compat import ray

ds = ray.data.range_tensor(4, shape=(3, 3))
print(ds.schema())
batch = next(iter(ds.iter_batches(batch_size=4)))
assert batch["data"].shape == (4, 3, 3)


def ragged(row):
    return {"image": np.zeros((int(row["data"][0, 0]) + 1, 2), np.uint8)}


shapes = [row["image"].shape for row in ds.map(ragged).take_all()]
assert shapes == [(1, 2), (2, 2), (3, 2), (4, 2)]
twice = ds.map_batches(lambda batch: {"data": batch["data"] * 2, "sum": batch["data"].sum((1, 2))})
assert twice.take_all()[1]["sum"] == 9
assert (
    ds.map(ragged).map_batches(lambda batch: {"n": [len(image) for image in batch["image"]]}).sum("n") == 10
)
