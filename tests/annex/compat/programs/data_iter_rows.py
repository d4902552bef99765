"""Rows one by one, and the same dataset again."""

import ray

ds = ray.data.from_items([{"x": i, "s": str(i)} for i in range(4)])
for row in ds.iter_rows():
    print(row["x"], row["s"], type(row).__name__, sorted(row))
print([row["x"] for row in ds.iter_rows()] == [row["x"] for row in ds.iter_rows()])
rows = iter(ds.iter_rows())
print(next(rows), next(rows))
