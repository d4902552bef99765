"""Rows of Parquet by conditions; types by a schema."""

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data.expressions import col

path = tempfile.mkdtemp() + "/a.parquet"
pq.write_table(pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]}), path)
print(ray.data.read_parquet(path).filter(expr=col("x") > 1).take_all())
print(ray.data.read_parquet(path).filter(expr="x > 2").select_columns(["y"]).take_all())
print(ray.data.read_parquet(path, schema=pa.schema({"x": pa.float64(), "y": pa.string()})).take(1))
print(ray.data.read_parquet([path, path]).count())
