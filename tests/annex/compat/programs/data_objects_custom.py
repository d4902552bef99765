"""Objects of one's own classes in a column, through several steps and forms of batches."""

import numpy as np
import ray


class Box:
    def __init__(self, value):
        self.value = value


def make(batch):
    return {"id": batch["id"], "box": [Box(int(i)) for i in batch["id"]]}


def use(batch):
    return {"out": np.array([box.value * 2 for box in batch["box"]])}


ds = ray.data.range(4, override_num_blocks=1)
print(ds.map_batches(make).map_batches(use).take_all())
print(ds.map(lambda row: {"box": Box(int(row["id"]))}).map(lambda row: {"v": row["box"].value}).take(2))
print(type(ds.map_batches(make).take(1)[0]["box"]).__name__)
print(ds.map_batches(make).filter(lambda row: row["box"].value > 1).map_batches(use, batch_size=1).take_all())
print(ds.map_batches(make).select_columns(["id"]).take(1))
