"""Sums and means of one column and of several."""

import ray

ds = ray.data.from_items([{"x": i, "y": i / 2} for i in range(1, 5)])
print(ds.sum("x"), ds.min("x"), ds.max("y"), ds.mean("x"), round(ds.std("x"), 9))
print(type(ds.sum("x")).__name__, type(ds.mean("x")).__name__, type(ds.max("y")).__name__)
print(ds.sum(["x", "y"]), ds.mean(["x", "y"]))
print(round(ds.std("x", ddof=0), 9), ray.data.range(10).sum("id"))
print(ds.map(lambda row: {"s": str(row["x"])}).max("s"))
