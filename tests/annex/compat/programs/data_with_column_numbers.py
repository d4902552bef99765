"""Expressions on numbers."""

import ray
from ray.data.datatype import DataType
from ray.data.expressions import col

ds = ray.data.from_items([{"x": 1.26}, {"x": -2.5}, {"x": None}], override_num_blocks=1)
print(ds.with_column("r", col("x").round()).take_all())
print(ds.with_column("c", col("x").ceil()).with_column("f", col("x").floor()).take_all())
print(ds.with_column("a", col("x").abs()).take_all())
print(ray.data.range(3).with_column("f", col("id").cast(DataType.float32())).schema().types)
print(ray.data.range(4).filter(expr=col("id").is_in([1, 3])).take_all())
print(ray.data.range(4).filter(expr=col("id").not_in([1, 3])).take_all())
print(ray.data.range(4).filter(expr=(col("id") > 0) & ~(col("id") == 2)).take_all())
