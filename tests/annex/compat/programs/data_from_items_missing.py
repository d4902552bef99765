"""Rows with missing keys, and columns of several types: every row has all columns, a column has one type."""

import ray

print(ray.data.from_items([{"x": 1}, {"x": 2, "y": 3}]).take_all())
print(ray.data.from_items([{"x": 1}, {"x": 2.5}]).take_all())
