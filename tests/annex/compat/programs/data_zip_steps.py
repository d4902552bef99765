"""Datasets that have steps, side by side."""

import numpy as np
import pyarrow as pa
import ray

a = ray.data.range(4).map(lambda row: {"id": row["id"] * 10})
b = ray.data.range(4).map_batches(lambda batch: {"id": batch["id"], "half": batch["id"] / 2})
print(1, a.zip(b).take_all())
print(2, a.zip(b).schema().names, [str(each) for each in a.zip(b).schema().types], a.zip(b).count())
print(3, a.zip(a).zip(a).take(1), a.zip(a, a).columns())
print(4, a.zip(b).map_batches(lambda batch: {"sum": batch["id"] + batch["half"]}).take_all())
print(5, a.zip(b).filter(lambda row: row["half"] > 0.5).select_columns(["id", "half"]).take_all())
print(6, a.zip(b).sum("half"), a.zip(b).max("id"), len(a.zip(b).take(3)))
c = ray.data.from_arrow(pa.table({"k": [5, 6, 7, 8], "t": ["a", "b", "c", "d"]})).rename_columns({"k": "id"})
print(7, b.zip(c).take_all())
print(8, c.drop_columns(["t"]).zip(c.select_columns(["t"]), a).take(2))


class Plus:
    def __init__(self, by):
        self.by = by

    def __call__(self, batch):
        return {"id": batch["id"] + self.by}


pools = a.map_batches(Plus, fn_constructor_args=(1,), concurrency=1).zip(
    b.map_batches(Plus, fn_constructor_args=(2,), concurrency=1)
)
print(9, pools.take_all())
print(10, a.zip(b).map(lambda row: {"x": row["id"] + row["id_1"]}).zip(b).take_all())
print(11, a.zip(b).to_pandas()["half"].tolist())
arrays = ray.data.from_numpy(np.arange(8).reshape(4, 2)).map_batches(
    lambda batch: {"data": batch["data"] + 1}
)
print(12, [row["data"].tolist() for row in a.zip(arrays).take_all()], a.zip(arrays).columns())
print(
    13,
    a.zip(b).union(a.zip(b)).count(),
    sum(len(batch["half"]) for batch in a.zip(b).iter_batches(batch_size=3)),
)
try:
    a.zip(ray.data.range(3)).take_all()
except Exception as error:
    print("refused", isinstance(error, ValueError))
