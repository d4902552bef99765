# The calls are those of ray-project/ray, doc/source/data/joining-data.rst.
from headrace.compat import ray

doubles = ray.data.range(4).map(lambda row: {"id": row["id"], "double": int(row["id"]) * 2})
squares = ray.data.range(6).map(lambda row: {"id": row["id"], "square": int(row["id"]) ** 2})
joined = doubles.join(squares, join_type="inner", num_partitions=2, on=("id",))
rows = sorted(joined.take_all(), key=lambda row: row["id"])
assert rows == [{"id": n, "double": 2 * n, "square": n * n} for n in range(4)]
right = doubles.join(squares, join_type="right_outer", num_partitions=2, on=("id",))
assert right.count() == 6
