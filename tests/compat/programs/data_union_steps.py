"""Datasets that have steps, one behind the other."""

import ray

a = ray.data.range(3).map(lambda row: {"id": row["id"] * 10})
b = ray.data.range(3).filter(lambda row: row["id"] > 0)
print(sorted(row["id"] for row in a.materialize().union(b.materialize()).take_all()))
