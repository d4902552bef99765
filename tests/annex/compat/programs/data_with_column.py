"""Expressions: arithmetic, comparisons, literals, replacing a column."""

import ray
from ray.data.expressions import col, lit

ds = ray.data.range(5)
print(ds.with_column("plus", col("id") + 1).take(2))
print(ds.with_column("times", col("id") * col("id") - lit(2)).take_all())
print(ds.with_column("id", col("id") * 2).take(3))
print(ds.with_column("one", lit(1)).with_column("two", col("one") + 1).take(1))
print(ds.with_column("big", col("id") >= 3).take_all())
print(ds.with_column("reverse", 10 - col("id")).take(2))
print(ds.with_column("odd", col("id") % 2).with_column("half", col("id") // 2).take(4))
print(ds.with_column("float", col("id") / 2.0).take(3))
print(ds.with_column("text", lit("a")).schema().types)
