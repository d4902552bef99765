# The calls are those of ray-project/ray, doc/source/data/transforming-data.rst.
from headrace.compat import ray

ds = ray.data.from_items([{"k": n % 3, "v": -n} for n in range(9)])
assert [row["v"] for row in ds.sort("v").take(3)] == [-8, -7, -6]
rows = ds.sort(["k", "v"], descending=[True, False]).take_all()
assert [(row["k"], row["v"]) for row in rows][:3] == [(2, -8), (2, -5), (2, -2)]
assert ds.sort("v", descending=True).limit(1).take_all() == [{"k": 0, "v": 0}]
