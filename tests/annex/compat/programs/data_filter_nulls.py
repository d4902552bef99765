"""Filters by columns that have nulls."""

import ray
from ray.data.expressions import col

ds = ray.data.from_items([{"x": 1, "s": "a"}, {"x": None, "s": "b"}, {"x": 3, "s": None}])
print(ds.filter(expr=col("x") > 1).take_all())
print(ds.filter(expr=col("x").is_null()).take_all())
print(ds.filter(expr=col("s").is_not_null()).take_all())
print(ds.filter(expr=(col("x") > 1) | (col("s") == "b")).take_all())
print(ds.filter(expr=~(col("x") == 1)).take_all())
print(ds.filter(lambda row: row["x"] is not None).count())
