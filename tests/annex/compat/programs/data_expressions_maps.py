import pyarrow as pa
import ray
from ray.data.expressions import col

maps = pa.array([[("a", 1), ("b", 2)], [], None], pa.map_(pa.string(), pa.int64()))
ds = ray.data.from_arrow(pa.table({"m": maps}))
ds = ds.with_column("keys", col("m").map.keys()).with_column("values", col("m").map.values())
print(ds.select_columns(["keys", "values"]).take_all())

pairs = pa.table({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), "y": pa.array([[3, 1], [2]])})
ds = ray.data.from_arrow(pairs).with_column("list", col("x").arr.to_list())
ds = ds.with_column("sorted", col("y").list.sort())
print(ds.select_columns(["list", "sorted"]).take_all())
