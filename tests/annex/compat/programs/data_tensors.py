"""Arrays as columns: rows of one shape."""

import numpy as np
import ray

ds = ray.data.from_numpy(np.arange(12).reshape(3, 2, 2))
print(ds.take(1), ds.columns(), ds.count())
batch = next(iter(ds.iter_batches(batch_size=2)))
print(batch["data"].shape, batch["data"].dtype)
print(ds.map_batches(lambda batch: {"mean": batch["data"].mean(axis=(1, 2))}).take_all())
print(ds.map(lambda row: {"t": row["data"].T, "shape": list(row["data"].shape)}).take(1))
print(ray.data.range_tensor(3, shape=(2,)).take_all())
two = ray.data.from_numpy([np.zeros((2, 3)), np.ones((1, 3))])
print(two.count(), two.take_batch(3)["data"].sum(axis=1))
