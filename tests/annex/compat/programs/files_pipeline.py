"""Read, prepare, predict, write: as in the first example of a batch job."""

import tempfile

import numpy as np
import ray


class Classifier:
    def __init__(self, names):
        self.names = names

    def __call__(self, batch):
        return {"id": batch["id"], "label": [self.names[int(i) % 2] for i in batch["id"]]}


source, target = tempfile.mkdtemp(), tempfile.mkdtemp()
ray.data.range(20).write_parquet(source)
done = (
    ray.data.read_parquet(source)
    .filter(lambda row: row["id"] >= 10)
    .map_batches(lambda batch: {"id": batch["id"], "x": np.sqrt(batch["id"])}, batch_size=4)
    .map_batches(Classifier, fn_constructor_args=[["even", "odd"]], batch_size=5, concurrency=1)
)
done.write_parquet(target)
print(sorted((row["id"], row["label"]) for row in ray.data.read_parquet(target).take_all()))
