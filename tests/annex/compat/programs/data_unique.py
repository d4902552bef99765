"""Values that occur."""

import ray

ds = ray.data.from_items([{"s": s, "n": n} for s, n in (("b", 2), ("a", 1), ("b", 1))])
print(sorted(ds.unique("s")), sorted(ds.unique("n")), {type(each).__name__ for each in ds.unique("n")})
