"""stats and a printed dataset are texts."""

import ray

ds = ray.data.range(3).map(lambda row: row)
ds.take_all()
print(isinstance(ds.stats(), str), isinstance(repr(ds), str), "id" in str(ray.data.range(3)))
