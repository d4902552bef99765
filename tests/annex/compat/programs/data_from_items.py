"""Rows that are dicts, numbers, texts, lists or arrays."""

import numpy as np
import ray

print(ray.data.from_items([1, 2, 3]).take_all())
print(ray.data.from_items(["a", "b"]).take_all())
print(ray.data.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": None}]).take_all())
print(ray.data.from_items([[1, 2], [3]]).take_all())
print(ray.data.from_items([np.array([1, 2]), np.array([3, 4])]).take_all())
print(ray.data.from_items([1.5, None]).take_all())
print(ray.data.from_items([{"a": {"b": [1]}}]).take_all())
print(ray.data.from_items([(1, 2)]).take_all())
print(ray.data.from_items([True, False]).take_all(), ray.data.from_items([b"x"]).take_all())
