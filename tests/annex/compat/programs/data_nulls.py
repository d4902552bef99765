"""What functions see of values that are missing."""

import math

import ray

ds = ray.data.from_items(
    [{"i": 1, "f": 1.5, "s": "a"}, {"i": None, "f": None, "s": None}], override_num_blocks=1
)
print(ds.map(lambda row: {name: value is None for name, value in row.items()}).take_all())
batch = ds.take_batch(2)
print({name: str(column.dtype) for name, column in batch.items()})
print(math.isnan(batch["f"][1]), batch["s"].tolist())
print(ds.map_batches(lambda table: table, batch_format="pyarrow").take_all())
print(ds.map_batches(lambda frame: frame[frame["i"].notna()], batch_format="pandas").count())
