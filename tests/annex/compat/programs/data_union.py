"""Datasets one behind the other."""

import ray

a, b = ray.data.range(2), ray.data.from_items([{"id": 7}])
print(sorted(row["id"] for row in a.union(b).take_all()), a.union(b, a).count())
print(sorted(row["x"] for row in a.union(b).map(lambda row: {"x": row["id"] + 1}).take_all()))
print(a.union(b).sum("id"), a.union(ray.data.range(0)).count())
