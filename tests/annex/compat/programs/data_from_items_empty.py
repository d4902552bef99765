"""A dataset without rows."""

import ray

ds = ray.data.from_items([])
print(ds.count(), ds.take_all(), ds.take(3), list(ds.iter_rows()), list(ds.iter_batches()))
print(ds.map(lambda row: row).count())
