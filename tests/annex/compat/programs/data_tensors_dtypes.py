"""Small dtypes stay what they are, through batches of each form."""

import numpy as np
import ray

for dtype in ("uint8", "int16", "float16", "float32", "bool", "int64"):
    ds = ray.data.from_numpy(np.ones((3, 2), dtype=dtype))
    one = ds.map_batches(lambda batch: {"data": batch["data"], "flat": batch["data"][:, 0]})
    row = one.take(1)[0]
    print(dtype, row["data"].dtype, type(row["flat"]).__name__, one.take_batch(2)["flat"].dtype)
