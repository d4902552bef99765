"""A dataset that was computed once."""

import ray

ds = ray.data.range(5).map(lambda row: {"x": row["id"] + 1}).materialize()
print(ds.count(), ds.take_all(), ds.sum("x"))
print(ds.map(lambda row: {"y": row["x"] * 2}).take_all(), ds.schema().names)
