"""One expression whose values differ on purpose: a quotient of integers."""

import ray
from ray.data.expressions import col

print(ray.data.range(4).with_column("half", col("id") / 2).take_all())
