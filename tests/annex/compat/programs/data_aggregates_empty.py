"""Aggregates of nothing."""

import ray

ds = ray.data.range(3).filter(lambda row: False)
print(ds.count(), ds.sum("id"), ds.max("id"), ds.mean("id"))
