"""Lists, scalars of numpy, empty batches, and columns that come and go."""

import numpy as np
import ray

ds = ray.data.range(4, override_num_blocks=1)
print(ds.map_batches(lambda batch: {"a": [1, 2], "b": ["x", None]}).take_all())
print(ds.map_batches(lambda batch: {"a": []}).count())
print(ds.map_batches(lambda batch: {"a": np.array(["x", "yy"])}).take_all())
print(ds.map_batches(lambda batch: {"t": np.ones((len(batch["id"]), 2, 2))}).take(1))
print(ds.map_batches(lambda batch: {**batch, "new": batch["id"] ** 2}).take(2))
print(ds.map_batches(lambda batch: {"lists": [[1], [1, 2]]}).take_all())
