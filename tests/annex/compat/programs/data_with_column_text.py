"""Expressions on texts."""

import ray
from ray.data.expressions import col

ds = ray.data.from_items([{"s": " Ab"}, {"s": None}, {"s": "cde "}], override_num_blocks=1)
print(ds.with_column("u", col("s").str.upper()).take_all())
print(ds.with_column("l", col("s").str.lower()).take_all())
print(ds.with_column("n", col("s").str.len()).take_all())
print(ds.with_column("t", col("s").str.strip()).take_all())
print(ds.with_column("c", col("s").str.contains("b")).take_all())
print(ds.with_column("p", col("s").str.starts_with("c")).take_all())
print(ds.with_column("r", col("s").str.replace("d", "D")).take_all())
