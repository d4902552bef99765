"""Columns of which some rows have nothing."""

import ray

print(ray.data.from_items([{"x": None}, {"x": "a"}]).take_all())
print(ray.data.from_items([{"x": [1]}, {"x": None}]).take_all())
