"""NumPy batches: dicts of arrays, one dtype for each column."""

import numpy as np
import ray


def look(batch):
    return {
        "rows": [len(batch["id"])],
        "dtype": [str(batch["id"].dtype)],
        "kind": [type(batch["id"]).__name__],
        "sum": [batch["id"].sum()],
    }


ds = ray.data.range(10)
print(ds.map_batches(look, batch_size=4).take_all())
print(ds.map_batches(lambda batch: {"half": batch["id"] / 2}).sum("half"))
print(ds.map_batches(lambda batch: {"id": batch["id"][batch["id"] > 6]}).take_all())
print(ds.map_batches(lambda batch: {"x": batch["id"].astype(np.float32)}).schema().types)
print(ds.map_batches(lambda batch: {"x": np.repeat(batch["id"], 2)}, batch_size=5).count())
