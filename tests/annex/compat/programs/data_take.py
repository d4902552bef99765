"""take, take_all, take_batch, show and limit."""

import ray

ds = ray.data.range(25)
print(len(ds.take()), ds.take(2), ds.take(100) == ds.take_all())
print(ds.take_batch(3), ds.take_batch(2, batch_format="pandas").to_dict("list"))
print(ds.take_batch(2, batch_format="pyarrow").to_pydict())
ds.show(2)
print(ds.limit(3).take_all(), ds.limit(0).count(), ds.limit(100).count())
try:
    ds.take_all(limit=5)
except ValueError:
    print("ValueError")
print(ray.data.from_items([{"a": 1}]).filter(lambda row: False).take(5))
