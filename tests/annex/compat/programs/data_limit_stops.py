"""limit in the middle of a chain, and a take that needs no more than it takes."""

import ray

ds = ray.data.range(1000, override_num_blocks=1)
print(ds.limit(5).map(lambda row: {"x": row["id"] * 2}).take_all())
print(ds.filter(lambda row: row["id"] % 2 == 1).limit(3).take_all(), ds.limit(10).limit(3).count())
print(ds.limit(4).sum("id"), ds.limit(3).flat_map(lambda row: [row] * 2).limit(5).count())
