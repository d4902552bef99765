"""Samples and parts: how many rows, and that none is in both."""

import ray

ds = ray.data.range(1000)
print(ds.random_sample(0).count(), ds.random_sample(1.0).count())
print(200 < ds.random_sample(0.3, seed=5).count() < 400)
try:
    ds.random_sample(1.5)
except ValueError:
    print("ValueError")
train, test = ds.train_test_split(0.25, shuffle=True, seed=3)
left, right = {row["id"] for row in train.take_all()}, {row["id"] for row in test.take_all()}
print(len(left | right), len(left & right), 180 < len(right) < 320)
