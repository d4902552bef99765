# The calls are those of ray-project/ray, doc/source/data/api/expressions.rst.
from headrace.compat import ray
from headrace.compat.ray.data.expressions import col

ds = ray.data.from_items(
    [
        {"name": "alice", "scores": [85, 90, 78], "user": {"name": "a", "age": 25}},
        {"name": "bob", "scores": [92, 88], "user": {"name": "b", "age": 30}},
    ]
)
ds = ds.with_column("upper", col("name").str.upper())
ds = ds.with_column("number", col("scores").list.len())
ds = ds.with_column("first", col("scores").list.get(0))
ds = ds.with_column("age", col("user").struct.field("age"))
ds = ds.with_column("again", col("user").struct["name"])
ds.show()
rows = ds.take_all()
assert [row["upper"] for row in rows] == ["ALICE", "BOB"]
assert [(row["number"], row["first"], row["age"], row["again"]) for row in rows] == [
    (3, 85, 25, "a"),
    (2, 92, 30, "b"),
]
