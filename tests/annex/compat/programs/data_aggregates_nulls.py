"""Aggregates of columns that have nulls."""

import ray

ds = ray.data.from_items([{"x": 1}, {"x": None}, {"x": 4}])
print(ds.sum("x"), ds.min("x"), ds.max("x"), ds.mean("x"))
print(ds.sum("x", ignore_nulls=False), ds.min("x", ignore_nulls=False), ds.mean("x", ignore_nulls=False))
print(sorted(ds.unique("x"), key=str))
