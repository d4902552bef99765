"""Names, types, count and input files."""

import numpy as np
import pyarrow as pa
import ray

ds = ray.data.from_items([{"i": 1, "f": 1.5, "s": "x", "b": True, "l": [1, 2], "d": {"a": 1}}])
print(ds.schema().names, ds.schema().types)
print(ds.columns(), ds.count(), ds.input_files())
print(ray.data.range(5).schema().types == [pa.int64()], ray.data.range(5).size_bytes())
print(ray.data.from_numpy(np.zeros((4, 2), dtype=np.float32)).columns())
print(ds.map(lambda row: {"only": row["i"]}).columns())
