"""Arrays of different shapes in one column."""

import numpy as np
import ray

ds = ray.data.range(3).map(lambda row: {"a": np.ones((int(row["id"]) + 1, 2))})
print([row["a"].shape for row in ds.iter_rows()])
batch = next(iter(ds.iter_batches(batch_size=3)))
print(type(batch["a"]).__name__, batch["a"].dtype, [each.shape for each in batch["a"]])
print(ds.map(lambda row: {"sum": float(row["a"].sum())}).take_all())
