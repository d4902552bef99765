# The calls are those of ray-project/ray, python/ray/data/dataset.py.
from headrace.compat import ray

left = ray.data.range(3)
right = ray.data.range(3).map(lambda row: {"other": row["id"] * 10})
assert left.zip(right).take_all()[2] == {"id": 2, "other": 20}
assert left.union(left, left).count() == 9
assert left.unique("id") == [0, 1, 2]
assert left.limit(2).take_all() == [{"id": 0}, {"id": 1}]
assert left.rename_columns(["x"]).columns() == ["x"]
assert ray.data.from_items([{"a": 1, "b": 2}]).drop_columns(["a"]).take_all() == [{"b": 2}]
summary = left.materialize()
assert summary.copy(summary).count() == 3
