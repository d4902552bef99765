"""Parquet written and read again, whole and in part."""

import tempfile

import numpy as np
import ray

folder = tempfile.mkdtemp()
rows = [{"x": i, "s": str(i), "l": [i, i], "none": None if i % 2 else i} for i in range(6)]
ray.data.from_items(rows).write_parquet(folder)
ds = ray.data.read_parquet(folder)
print(sorted(ds.take_all(), key=lambda row: row["x"]) == rows, ds.count(), ds.columns())
print(sorted(row["x"] for row in ray.data.read_parquet(folder, columns=["x"]).take_all()))
print(ray.data.read_parquet(folder).schema().types)
tensors = tempfile.mkdtemp()
ray.data.from_numpy(np.arange(8, dtype=np.float32).reshape(2, 2, 2)).write_parquet(tensors)
row = ray.data.read_parquet(tensors).take(1)[0]["data"]
print(row.shape, row.dtype, row.tolist())
